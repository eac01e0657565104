"""The scenarios of verdict_scenarios.py on gloo with torch's own flight recorder: what each process says, what is
dumped, and what torchfrtrace makes of it. docs/old-way.md quotes it.

    python old_way.py [KIND ...] [--timeout 4]

Each process dumps when its script raises and, from a thread, two seconds after the timeout of its group: more than a
user gets who has prepared nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from torch._C._distributed_c10d import _dump_fr_trace_file
from torch.distributed.flight_recorder import fr_trace

from silent_files import silent_file
from verdict_scenarios import SCENARIOS
from verdict_scenarios import main as scenario

WORLD = 3
LINES_SHOWN = 12
NOT_OF_GLOO = ("out_of_memory",)  # the limit is the test's


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def worker(kind: str, rank: int, folder: Path, environment: dict[str, str], timeout_s: float) -> None:
    """One rank, in a fork of this process, which has imported torch already. Never returns."""
    output = os.open(folder / f"output{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment, RANK=str(rank), TORCH_FR_DUMP_TEMP_FILE=str(folder / "dumps" / "rank_"))

    def late() -> None:
        time.sleep(timeout_s + 3)
        _dump_fr_trace_file(rank)

    threading.Thread(target=late, daemon=True).start()
    status = 1
    try:
        scenario([kind, "--backend", "gloo", "--timeout", str(timeout_s)])
        status = 0
    except BaseException:
        _dump_fr_trace_file(rank)
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def run(kind: str, folder: Path, timeout_s: float) -> list[str]:
    """The job's processes to their end, or to their kill when all of them have had their time: what each said last."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORLD)}
    environment["SILENT_FILE"] = str(folder / "silent" / "file")
    pids = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            worker(kind, rank, folder, environment, timeout_s)
        pids.append(pid)
    deadline = time.monotonic() + timeout_s + 8
    statuses: dict[int, int] = {}
    while len(statuses) < WORLD and time.monotonic() < deadline:
        time.sleep(0.05)
        for rank, pid in enumerate(pids):
            if rank not in statuses and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                statuses[rank] = ended[1]
    ends = []
    for rank, pid in enumerate(pids):
        how = "runs on"
        if rank in statuses:
            code = os.waitstatus_to_exitcode(statuses[rank])
            how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        else:
            os.kill(pid, signal.SIGKILL)
        said = [line.strip() for line in (folder / f"output{rank}").read_text().splitlines() if line.strip()]
        ends.append(f"rank {rank}: {how}: {said[-1] if said else '-'}")
    return ends


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def mend(dump: Path) -> None:
    """Gloo's dump names the world group '' where its entries say '0' (torch 2.15), of which torchfrtrace dies with a
    KeyError.
    """
    trace = pickle.loads(dump.read_bytes())
    for name in {entry["process_group"][0] for entry in trace["entries"]} - set(trace["pg_config"]):
        trace["pg_config"][name] = {**next(iter(trace["pg_config"].values())), "name": name}
    dump.write_bytes(pickle.dumps(trace, protocol=2))


def analysis(dumps: Path) -> list[str]:
    """What torchfrtrace says of the dumps. In a fork, too: it imports torch."""
    if not any(dumps.iterdir()):
        return ["no dump"]
    said = dumps.parent / "analysis"
    said.write_text("")
    pid = os.fork()
    if pid == 0:
        output = os.open(said, os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            fr_trace.main(["--allow-incomplete-ranks", "-p", "rank_", str(dumps)])
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    return [line for line in said.read_text().splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=[kind for kind in SCENARIOS if kind not in NOT_OF_GLOO])
    parser.add_argument("--timeout", type=float, default=4)
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for part in ("dumps", "silent"):
                (folder / part).mkdir()
            with silent_file(folder / "silent") if kind == "uninterruptible" else contextlib.nullcontext():
                ends = run(kind, folder, arguments.timeout)
            reap()
            dumps = sorted(dump.name for dump in (folder / "dumps").iterdir())
            print(f"== {kind}; dumps: {dumps}")
            print("\n".join(ends))
            said = analysis(folder / "dumps")
            print(f"   as written: {said[-1]}")
            for dump in (folder / "dumps").iterdir():
                mend(dump)
            print("\n".join(f"   mended: {line}" for line in analysis(folder / "dumps")[-LINES_SHOWN:]), flush=True)


if __name__ == "__main__":
    main()
