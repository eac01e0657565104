"""Ranks that call two groups in opposite orders, under plain torchrun: a named error on both, soon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import datetime, json, os, sys, threading, time
import torch
import torch.distributed as dist
import closeranks

torch.set_num_threads(1)
dist.init_process_group("closeranks", timeout=datetime.timedelta(seconds=60))
rank, case = dist.get_rank(), sys.argv[1]
other = dist.new_group([0, 1], group_desc="other")
tensor = torch.ones(4)
dist.all_reduce(tensor)
dist.all_reduce(tensor, group=other)
dist.barrier()
began = time.monotonic()
said = {"error": None}
try:
    if case == "two groups":
        group = dist.group.WORLD if rank == 0 else other
        dist.all_reduce(tensor, group=group)
    elif case == "async":
        # Both are in flight on both ranks but the last one of each, which its rank waits before.
        first, second = (dist.group.WORLD, other) if rank == 0 else (other, dist.group.WORLD)
        work = dist.broadcast(tensor, 0, group=first, async_op=True)
        work.wait()
        dist.broadcast(tensor, 0, group=second)
    elif case == "recv":
        if rank == 0:
            dist.recv(tensor, src=1)
        else:
            dist.all_reduce(tensor)
    elif case == "slow":
        if rank == 1:
            while time.monotonic() - began < 4:
                torch.randn(100, 100) @ torch.randn(100, 100)
        for group in (dist.group.WORLD, other):
            dist.all_reduce(tensor, group=group)
except dist.DistBackendError as error:
    said = {
        "error": type(error).__name__, "module": type(error).__module__, "text": str(error), "move": error.move,
        "group": error.group, "op": error.op,
    }
said["seconds"] = time.monotonic() - began
with open(os.environ["RESULTS"] + f"/{rank}", "w") as file:
    json.dump(said, file)
# Whoever ends first must not take the other one along: torchrun ends all when one fails.
while not all(os.path.exists(os.environ["RESULTS"] + f"/{r}") for r in (0, 1)):
    time.sleep(0.01)
os._exit(0)
"""


def torchrun(folder: Path, case: str) -> list[dict[str, object]]:
    """Runs the case on two ranks; what each of them says."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script), case]
    result = subprocess.run(
        command,
        env={**os.environ, "RESULTS": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    said: list[dict[str, object]] = [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]
    return said


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("two groups", ("all_reduce of 4 float32, sum", "all_reduce of 4 float32, sum")),
        ("async", ("broadcast of 4 float32 from rank 0", "broadcast of 4 float32 from rank 0")),
        ("recv", ("recv of 4 float32 from rank 1", "all_reduce of 4 float32, sum")),
    ],
)
def test_a_circle_is_a_mismatch_that_names_both_calls(tmp_path: Path, case: str, calls: tuple[str, str]) -> None:
    said = torchrun(tmp_path, case)
    for rank, one in enumerate(said):
        text = str(one["text"])
        assert one["error"] == "Mismatch", one
        assert str(one["module"]).startswith("closeranks"), one
        assert one["move"] == "fix_call"
        assert isinstance(one["seconds"], float)
        assert one["seconds"] < 5, one
        for who, call in enumerate(calls):
            assert f"rank {who} (pid " in text
            assert f"waits in {call}" in text, text
        assert f"for rank {1 - rank} (pid " in text
        assert str(one["op"]).startswith(calls[rank].split()[0])
    assert said[0]["group"] != said[1]["group"] or case == "recv"


def test_a_rank_that_computes_is_not_accused(tmp_path: Path) -> None:
    for one in torchrun(tmp_path, "slow"):
        assert one["error"] is None, one
        assert isinstance(one["seconds"], float)
        assert one["seconds"] > 3
