"""Whole interpreters for tests of how one ends, forked from one that has imported torch: that is most of their cost.

The forks run a script at the top of their main module and end as every interpreter does: atexit, finalisation, exit
status. They have not imported closeranks before the script does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Reads a line of JSON per job; forks once per script; answers a line with the exit statuses.
PARENT = """
import json, os, signal, sys, time
import torch, torch.distributed, torch.nn.parallel

def next_script():
    for line in sys.stdin:
        job = json.loads(line)
        if job is None:
            return None
        children = {}
        for place, script in enumerate(job["scripts"]):
            child = os.fork()
            if child == 0:
                return script
            children[child] = place
        deadline = time.monotonic() + job["timeout"]
        statuses = [None] * len(job["scripts"])
        while children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                if time.monotonic() > deadline:
                    for late in children:
                        os.kill(late, signal.SIGKILL)
                    deadline += 1e9
                time.sleep(0.005)
                continue
            statuses[children.pop(child)] = os.waitstatus_to_exitcode(status)
        print(json.dumps(statuses), flush=True)
    return None

script = next_script()
if script is not None:
    for number, path in ((1, script + ".out"), (2, script + ".err")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.close(0)
    sys.argv = [script]
    exec(compile(open(script).read(), script, "exec"))
"""


class Interpreters:
    """Use `run`; `close` must be called."""

    def __init__(self) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, folder: Path, text: str, world: int = 2, timeout: float = 60.0
    ) -> list[subprocess.CompletedProcess[str]]:
        """Runs the script `text` once per rank; {rank}, {world} and {store} are filled in.

        After `timeout` seconds what still runs is killed, and its exit status says so.
        """
        scripts = []
        for rank in range(world):
            script = folder / f"script{rank}.py"
            script.write_text(text.format(rank=rank, world=world, store=folder / "store"))
            scripts.append(str(script))
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write(json.dumps({"scripts": scripts, "timeout": timeout}) + "\n")
        self.parent.stdin.flush()
        statuses = json.loads(self.parent.stdout.readline())
        return [
            subprocess.CompletedProcess(
                [script], status, Path(script + ".out").read_text(), Path(script + ".err").read_text()
            )
            for script, status in zip(scripts, statuses, strict=True)
        ]

    def close(self) -> None:
        assert self.parent.stdin is not None
        # Not by closing alone: forks of the test process hold this end of the pipe, too.
        self.parent.stdin.write("null\n")
        self.parent.stdin.close()
        self.parent.wait(timeout=30)
