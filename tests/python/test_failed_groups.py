"""A group that has failed with a lost member keeps replacements out until it is shut down; everybody is told so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from jobs import TOOL, Running

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

TRAINING = """
import os, sys
import torch
import torch.distributed as dist
import closeranks

folder = sys.argv[1]
closeranks.init()
strict = dist.new_group()
model = closeranks.data_parallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = closeranks.Session(model, optimizer)
session.on_join(lambda slots: print("joined", slots, flush=True))
forever = iter(lambda: torch.ones(4, 8), None)
first = True
for step in session.steps(forever):
    with step as x:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # A replacement tries it in its first step, alone: the others have none any more.
    if strict is not None and (session.step % 10 == 5 or first):
        first = False
        try:
            dist.all_reduce(torch.ones(3), group=strict)
        except closeranks.Error as error:
            print("strict:", str(error).splitlines()[0], flush=True)
    done = torch.tensor([float(os.path.exists(folder + "/shut-down")), float(os.path.exists(folder + "/end"))])
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    if done[0] > 0 and strict is not None:
        dist.destroy_process_group(strict)
        strict = None
    if done[1] > 0:
        break
print("done", flush=True)
"""


def test_a_failed_group_keeps_replacements_out_until_it_is_shut_down(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    job = Running(tmp_path, [str(tmp_path / "train.py"), str(tmp_path)], 2, ("--shrink", "--spares", "0"))
    job.wait_for_event("session_started")
    time.sleep(0.5)  # some ops of the group
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_for("strict: slot 1 (worker 1")
    # The newcomer's line is about why; the survivor's, too.
    job.wait_for("the new worker of slot 1 has not been let in, and asks again: slot 0 (worker 0): group '")
    lines = [line for line in job.lines if "cannot take in a newcomer: it has failed (slot 1 (worker 1" in line]
    assert {line[:3] for line in lines} == {"[0]", "[1]"}, job.lines
    assert all("destroy_process_group(group)" in line and "closeranks.set_policy" in line for line in lines)
    assert len(lines) == 2, "once each"
    (tmp_path / "shut-down").touch()
    job.wait_for("joined [1]", times=2)
    job.wait_for("was shut down by the others before this worker joined")
    (tmp_path / "end").touch()
    assert job.end() == 0, job.lines
    assert sum("done" in line for line in job.lines) == 2
