"""SIGKILL of the agent: nobody can help its workers any more, so they end by themselves, and say why in their logs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from jobs import TOOL, Running, leftovers, pids_of

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

TRAINING = """
import os, sys, time
import torch
import closeranks

slot = int(os.environ["RANK"])
closeranks.init()
model = closeranks.data_parallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = closeranks.Session(model, optimizer)
forever = iter(lambda: torch.ones(4, 8), None)
try:
    for step in session.steps(forever):
        with step as x:
            if slot == 2 and os.path.exists(sys.argv[1] + "/hang"):
                open(sys.argv[1] + "/hangs", "w").close()
                while True: pass
            model(x).sum().backward()
            optimizer.step()
except closeranks.SystemFault as error:
    print("printed by slot", slot, flush=True)
    if slot == 1:
        print("saved", session.step > 0, flush=True)
        sys.exit(0)
    raise
"""
SENTENCE = "closeranks run with the coordinator of the job, has ended"


def test_workers_end_with_their_agent_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    # The first has nobody to wait for and prints nothing; the second saves something first; the third never looks.
    job = Running(tmp_path, [str(tmp_path / "train.py"), str(tmp_path)], 3, ("--shrink",))
    job.wait_for_event("spare_started")
    (tmp_path / "hang").touch()
    while not (tmp_path / "hangs").exists():
        assert job.process.poll() is None, job.lines
    events = job.events()
    pids = [*pids_of(events), *(int(str(e["pid"])) for e in events if e["event"] == "spare_started")]
    assert len(pids) == 4
    os.kill(job.process.pid, signal.SIGKILL)
    killed = time.monotonic()
    while leftovers(pids) and time.monotonic() < killed + 30:
        pass
    assert not leftovers(pids), "workers outlive their agent"
    (log,) = (tmp_path / "log").iterdir()
    errors = [(log / f"slot-{slot}.stderr.log").read_text() for slot in range(3)]
    assert all(SENTENCE in text for text in errors), errors
    assert "Traceback" in errors[0] and "SystemFault" in errors[0]
    assert "Traceback" not in errors[1]
    assert (log / "slot-1.stdout.log").read_text().splitlines()[-2:] == ["printed by slot 1", "saved True"]
    assert "it is killed" in errors[2], "it never comes to an op"
