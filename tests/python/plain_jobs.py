"""Starts the scenarios of verdict_scenarios.py as a plain launcher would, side by side, in forks of one interpreter
that has imported torch once.

    python plain_jobs.py FOLDER TIMEOUT KIND...

Each job has its recorders' files in FOLDER/KIND/trace and its workers' output in FOLDER/KIND/output. Whatever still
runs is killed when stdin ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import torch.utils.data  # noqa: F401 - imported before the forks, as is all of torch

import verdict_scenarios

WORLD = 3


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(kind: str, folder: Path) -> list[int] | None:
    """The process ids of the job's workers; None in a worker."""
    folder.mkdir(parents=True)
    port = str(free_port())
    pids = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(WORLD),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                CLOSERANKS_TRACE_DIR=str(folder / "trace"),
            )
            return None
        pids.append(pid)
    return pids


def main() -> None:
    folder, timeout = Path(sys.argv[1]), sys.argv[2]
    pids: list[int] = []
    for kind in sys.argv[3:]:
        started = start(kind, folder / kind)
        if started is None:
            # The end of this interpreter is the worker's own: hooks and exit handlers run as in any script.
            verdict_scenarios.main([kind, "--timeout", timeout])
            return
        pids += started
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
