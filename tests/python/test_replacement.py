"""Replacement by the agent, in real jobs: spares, slots given up, draining, `closeranks job`, hung workers' stacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jobs import TOOL, Running, leftovers, run

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

# A small model in a Session; what goes wrong is the test's to add, by slot and by life (0: the first of its slot).
TRAINING = """
import os, sys, time, signal
slot = int(os.environ["RANK"])
worker = int(os.environ["CLOSERANKS_WORKER"])
replacement = worker != slot
folder = sys.argv[1]
#FIRST
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
import closeranks

def last_step():
    # The test says when it is enough: a step that nobody has come to yet.
    try:
        return int(open(folder + "/last").read())
    except OSError:
        return 1_000_000_000

def at_step(number): pass
#FAULT
closeranks.init()
torch.manual_seed(1)
data = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
sampler = closeranks.ElasticSampler(data)
model = closeranks.data_parallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = closeranks.Session(model, optimizer, sampler=sampler)
loader = DataLoader(data, batch_size=4, sampler=sampler)
for step in session.steps(loader, epochs=1000):
    with step as (x, y):
        time.sleep(0.02)
        at_step(session.step)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    if slot == 0:
        with open(folder + "/now.part", "w") as file: file.write(str(session.step))
        os.rename(folder + "/now.part", folder + "/now")
    if session.step >= last_step():
        break
print("slot", slot, "done", "after", session.step, "steps as worker", worker, flush=True)
"""


def training(folder: Path, fault: str = "", first: str = "") -> list[str]:
    path = folder / "train.py"
    path.write_text(TRAINING.replace("#FAULT", fault).replace("#FIRST", first))
    return [str(path), str(folder)]


def finish(job: Running, folder: Path) -> int:
    """Lets the training come to its end; returns the job's status."""
    (folder / "last.part").write_text(str(steps_done(folder) + 40))
    (folder / "last.part").rename(folder / "last")
    return job.end()


def steps_done(folder: Path) -> int:
    """Steps that slot 0 has done; waits for the first."""
    deadline = time.monotonic() + 60
    while not (folder / "now").exists():
        assert time.monotonic() < deadline, "slot 0 has done no step"
        time.sleep(0.02)
    return int((folder / "now").read_text())


def all_pids(job: Running) -> list[int]:
    return [int(str(e["pid"])) for e in job.events() if e["event"] in ("worker_started", "spare_started")]


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [TOOL, "job", *words, "--log-dir", str(folder / "log")]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_the_life_of_a_job_with_spares(tmp_path: Path) -> None:
    """A spare dies and is started again, the next one takes a lost slot; the job shrinks, grows, and is drained."""
    job = Running(tmp_path, training(tmp_path), workers=3, flags=("--shrink",))
    job.wait_for_event("session_started")
    shown = json.loads(ask(tmp_path, "status", "--json").stdout)
    assert [slot["state"] for slot in shown["slots"]] == ["present"] * 3
    assert shown["in_session"] is True
    refused = ask(tmp_path, "resize", "4")
    assert refused.returncode == 1
    assert "1 to 3 workers" in refused.stderr

    (first, *_) = job.wait_for_event("spare_started")
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    (_, spare, *_) = job.wait_for_event("spare_started", times=2)
    assert spare["worker"] != first["worker"]
    assert "MiB" in str(spare["detail"])

    os.kill(job.pid(1), signal.SIGKILL)
    (joined, *_) = job.wait_for_event("first_step")
    assert joined["slot"] == 1
    started = [e for e in job.events() if e["event"] == "worker_started" and e["slot"] == 1]
    assert [e["worker"] for e in started] == [1, spare["worker"]]
    assert started[1]["pid"] == spare["pid"]
    assert list((tmp_path / "log").glob(f"*/slot-1.worker-{spare['worker']}.stdout.log"))

    # It has left the next spare behind: nothing is imported once more.
    (*_, successor) = job.wait_for_event("spare_started", times=3, seconds=10)
    assert successor["worker"] == int(str(spare["worker"])) + 1

    assert ask(tmp_path, "resize", "2").returncode == 0
    (_, gone, *_) = job.wait_for_event("worker_excluded", times=2)
    assert gone["slot"] == 2
    assert ask(tmp_path, "resize", "3").returncode == 0
    (_, back, *_) = job.wait_for_event("first_step", times=2)
    assert back["slot"] == 2
    assert back["pid"] == successor["pid"]
    assert "present" in ask(tmp_path, "status").stdout

    job.process.send_signal(signal.SIGTERM)
    assert job.end(30) == 128 + signal.SIGTERM
    exits = [e for e in job.events() if e["event"] == "worker_exited" and e.get("slot") is not None]
    assert [e["reason"] for e in exits[-3:]] == ["exited with status 0"] * 3, job.lines
    assert sum("done after" in line for line in job.lines) == 4, "the one that was sent away, then all three"
    assert not leftovers(all_pids(job))


def test_without_spares_new_processes_are_started_until_a_slot_is_given_up(tmp_path: Path) -> None:
    first = 'if replacement and os.path.exists(folder + "/broken"): raise RuntimeError("no such disk")'
    job = Running(tmp_path, training(tmp_path, first=first), workers=2, flags=("--shrink", "--spares", "0"))
    job.wait_for_event("session_started")
    os.kill(job.pid(0), signal.SIGKILL)
    (joined, *_) = job.wait_for_event("first_step")
    assert joined["slot"] == 0
    (tmp_path / "broken").touch()
    os.kill(job.pid(1), signal.SIGKILL)
    (given_up, *_) = job.wait_for_event("slot_given_up", seconds=90)
    assert given_up["slot"] == 1
    assert finish(job, tmp_path) == 0, job.lines
    started = [e for e in job.events() if e["event"] == "worker_started" and e["slot"] == 1]
    assert len(started) == 4, "the first, and three that failed"
    assert any("slot 1 is given up: 3 workers ended before a first step" in line for line in job.lines)
    assert any("RuntimeError: no such disk" in line for line in job.lines)
    assert not [e for e in job.events() if e["event"] == "spare_started"]


def test_zero_replacements_leave_the_slot_vacant_and_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    fault = """
def at_step(number):
    if os.path.exists(folder + "/block"): time.sleep(1000)
"""
    job = Running(tmp_path, training(tmp_path, fault), workers=2, flags=("--shrink", "--max-replacements", "0"))
    job.wait_for_event("session_started")
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_for_event("worker_excluded")
    steps = steps_done(tmp_path)
    while steps_done(tmp_path) < steps + 20:
        assert job.process.poll() is None, job.lines
    (tmp_path / "block").touch()
    job.process.send_signal(signal.SIGTERM)
    job.wait_for("leave at their next boundary")
    start = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    assert job.end(20) == 128 + signal.SIGTERM
    assert time.monotonic() - start < 15
    assert len([e for e in job.events() if e["event"] == "worker_started"]) == 2
    assert not [e for e in job.events() if e["event"] == "spare_started"]
    assert not leftovers(all_pids(job))


def test_a_script_without_a_session_pays_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, time, os, signal, torch.distributed as dist\n"
        "dist.init_process_group('closeranks')\n"
        "for step in range(60):\n"
        "    if step == 20 and dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    dist.all_reduce(torch.ones(8)); time.sleep(0.02)\n"
    )
    job = run(tmp_path, [str(path)], workers=3)
    assert job.status == 0, job.output
    assert not job.of("spare_started")
    assert len(job.of("worker_started")) == 3


def test_every_kind_of_hang_is_found_and_replaced(tmp_path: Path) -> None:
    """One after the other in one job: Python without end, C that holds the GIL, a stuck loader, a silent pipe."""
    fault = """
import itertools, threading
class Stuck(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): threading.Event().wait()
def loop_in_python():
    while True: pass
def loop_in_c_with_the_gil(): sum(itertools.repeat(0))
def wait_for_a_loader_process(): next(iter(DataLoader(Stuck(), num_workers=1)))
def read_a_silent_pipe(): os.read(os.pipe()[0], 1)
kinds = [loop_in_python, loop_in_c_with_the_gil, wait_for_a_loader_process, read_a_silent_pipe]
def at_step(number):
    if not replacement and os.path.exists(folder + f"/hang-{slot}"): kinds[slot]()
"""
    job = Running(
        tmp_path, training(tmp_path, fault), workers=4, flags=("--shrink", "--hang-timeout", "2", "--spares", "2")
    )
    job.wait_for_event("session_started")
    kinds = ["loop_in_python", "loop_in_c_with_the_gil", "wait_for_a_loader_process", "read_a_silent_pipe"]
    for slot, kind in enumerate(kinds):
        (tmp_path / f"hang-{slot}").touch()
        hung = job.wait_for_event("worker_hung", times=slot + 1)
        assert [event["slot"] for event in hung] == list(range(slot + 1))
        job.wait_for_event("first_step", times=slot + 1)
        (stack,) = (tmp_path / "log").glob(f"*/slot-{slot}.stack.log")
        assert kind in stack.read_text()
        assert any(kind in line and line.startswith("closeranks:") for line in list(job.lines)), job.lines
    assert finish(job, tmp_path) == 0
    assert not leftovers(all_pids(job))


def test_job_without_a_running_job_says_so(tmp_path: Path) -> None:
    asked = ask(tmp_path, "status")
    assert asked.returncode == 1
    assert "no job runs with its logs in" in asked.stderr
