"""Starts the demo's two jobs, does harm to workers, and tells what happens as it happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import BATCH, HELD_OUT

TRAINING = Path(__file__).with_name("training.py")
IMAGES = 1797 - HELD_OUT
STARTUP_S = 90.0  # importing torch in every worker on a busy machine takes about ten
STALL_S = 40.0  # no worker has finished a step for this long: something is broken
REPLACED_S = 60.0  # a replacement that is not training by then does not come
HANG_TIMEOUT_S = 5
STOP_TIMEOUT_S = 3
STRIKES = 5  # tries to hit a worker inside an operation, in as many runs

KILL, STOP, LOOP = "kill", "stop", "loop"


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@dataclass
class Fault:
    """Harm done to one worker from outside, and what came of it (report.measure)."""

    kind: str
    slot: int
    worker: int
    at: float  # unix seconds of the signal
    sequence: int  # kill: entry of the all_reduce it was in; others: -1
    evidence: dict[str, Any]  # kill: what the op's own words said before and after (closeranks strike)
    step: int = -1
    detected_ms: float = -1.0
    excluded_ms: float = -1.0
    next_op_ms: float = -1.0
    replaced_ms: float = -1.0

    @property
    def words(self) -> str:
        return {KILL: "killed", STOP: "stopped for good", LOOP: "sent into an endless loop"}[self.kind]


@dataclass
class Run:
    """A finished job: its events and, by slot, what its workers wrote."""

    folder: Path
    started_at: float
    seconds: float
    status: int
    events: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


class Tail:
    """Whole new lines of a file that another process appends JSON lines to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        for line in content[:whole].splitlines():
            yield json.loads(line)


def tool() -> str:
    """The command-line tool beside this python."""
    path = Path(sys.executable).with_name("closeranks")
    if not path.exists():
        raise DemoError(f"{path} is missing: run `make build` first")
    return str(path)


def write_images(file: Path) -> None:
    """scikit-learn's handwritten digits as torch tensors: workers need not import scikit-learn, which takes seconds."""
    import torch  # noqa: PLC0415 - the command's first words should not wait for it
    from sklearn.datasets import load_digits  # noqa: PLC0415

    digits = load_digits()
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    torch.save((pixels, torch.tensor(digits.target, dtype=torch.int64)), file)


def epochs_of(steps: int, workers: int) -> int:
    """Epochs that have about `steps` steps with all workers present."""
    return max(1, round(steps / (IMAGES / (workers * BATCH) + 1)))


def images_of(folder: Path) -> Path:
    """Where both runs' folders have their images."""
    return folder.parent / "digits.pt"


class Job:
    """One `closeranks run` of the training script, watched from outside."""

    def __init__(self, folder: Path, workers: int, epochs: int, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.workers = workers
        self.tell = tell
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.jsonl"):
            old.unlink()
        self.events_file = folder / "events.jsonl"
        self._slow = folder / "slow"
        self._slow.unlink(missing_ok=True)
        self.events: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self._event_tail = Tail(self.events_file)
        self._step_tails = {slot: Tail(folder / f"slot-{slot}.jsonl") for slot in range(workers)}
        self.last_step = 0
        self._last_step_at = time.monotonic()
        self.ended_workers = 0
        self.started_at = time.time()
        self._output = (folder / "output.log").open("w")
        run_flags = ["--nproc-per-node", str(workers), "--shrink", "--events", str(self.events_file)]
        run_flags += ["--hang-timeout", str(HANG_TIMEOUT_S), "--stop-timeout", str(STOP_TIMEOUT_S)]
        script = [str(TRAINING), "--epochs", str(epochs), "--images", str(images_of(folder)), "--out", str(folder)]
        self.process = subprocess.Popen(
            [tool(), "run", *run_flags, "--log-dir", str(folder / "log"), *script],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def poll(self) -> None:
        """Reads what is new; tells events in words."""
        for event in self._event_tail.lines():
            self.events.append(event)
            words = self._in_words(event)
            if words:
                self.tell(words)
        for tail in self._step_tails.values():
            for record in tail.lines():
                if "step" in record and record["step"] > self.last_step:
                    if self.last_step == 0:
                        self.tell(f"first training step after {time.time() - self.started_at:.1f} s")
                    self.last_step = record["step"]
                    self._last_step_at = time.monotonic()
                self.ended_workers += "accuracy" in record

    def until(self, reached: Callable[[], bool], what: str, limit_s: float = float("inf")) -> None:
        """Waits for `reached`; DemoError when the job ends or stalls before, or after `limit_s`."""
        start = time.monotonic()
        while not reached():
            time.sleep(0.01)
            self.poll()
            if self.process.poll() is not None:
                self.poll()
                if reached():
                    return
                self._fail(f"the job ended with status {self.process.returncode} before {what}")
            now = time.monotonic()
            if now - self._last_step_at > (STALL_S if self.last_step else STARTUP_S):
                self._fail(f"no worker finished a step for {STALL_S:.0f} s (last: {self.last_step}); waited for {what}")
            if now - start > limit_s:
                self._fail(f"waited {limit_s:.0f} s in vain for {what}")

    def until_step(self, step: int) -> None:
        self.until(lambda: self.last_step >= step, f"step {step}")

    def until_spare(self) -> None:
        """Waits for a spare that is ready, with the training slowed down: importing torch takes a core for seconds."""
        if self.spare_is_ready():
            return
        self.tell("the next spare is getting ready; the training is slowed down meanwhile")
        self._slow.touch()
        self.until(self.spare_is_ready, "a spare", REPLACED_S)
        self._slow.unlink()

    def spare_is_ready(self) -> bool:
        ready = {e["worker"] for e in self.events if e["event"] == "spare_started"}
        return bool(ready - {e["worker"] for e in self.events if e["event"] == "worker_started"})

    def until_replaced(self, fault: Fault) -> None:
        """Waits for the first finished step of the worker that takes the place of `fault`'s."""
        self.until(
            lambda: self.event("first_step", fault) is not None, f"a replacement in slot {fault.slot}", REPLACED_S
        )

    def event(self, name: str, fault: Fault) -> dict[str, Any] | None:
        """The first event `name` of the fault's slot after it."""
        for event in self.events:
            if event["event"] == name and event.get("slot") == fault.slot and event["time"] >= fault.at:
                return event
        return None

    def running(self, slot: int) -> dict[str, Any]:
        """worker_started of the slot's present worker."""
        return [e for e in self.events if e["event"] == "worker_started" and e.get("slot") == slot][-1]

    def do(self, kind: str, slot: int) -> Fault | None:
        """Does harm to the worker of `slot`. None: it was killed, but not inside an op (not counted)."""
        worker = self.running(slot)
        if kind == KILL:
            return self._strike(slot, worker)
        number = signal.SIGSTOP if kind == STOP else signal.SIGUSR1
        fault = Fault(kind, slot, worker["worker"], time.time(), -1, {}, self.last_step + 1)
        os.kill(worker["pid"], number)
        self.tell(f"[bold]slot {slot} {fault.words}[/bold] ({number.name}, pid {worker['pid']})")
        self.faults.append(fault)
        return fault

    def _strike(self, slot: int, worker: dict[str, Any]) -> Fault | None:
        result = subprocess.run(
            [tool(), "strike", "--events", str(self.events_file), "--slot", str(slot)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if result.returncode != 0:
            self._fail(f"could not strike slot {slot}: {result.stderr.strip()}")
        evidence = json.loads(result.stdout)
        at = evidence["kill_unix_ns"] / 1e9
        fault = Fault(KILL, slot, worker["worker"], at, evidence["sequence"], evidence)
        if not evidence["hit"]:
            self.tell(f"the kill of slot {slot} fell between two operations: not counted")
            self.until_replaced(fault)
            return None
        self.tell(
            f"[bold]slot {slot} killed[/bold] (SIGKILL, pid {evidence['pid']}) inside all_reduce #{fault.sequence}: "
            f"it had entered, {evidence['own_blocks_distributed_after']} of its {evidence['own_blocks']} blocks "
            "were distributed"
        )
        self.faults.append(fault)
        return fault

    def finish(self) -> Run:
        self.until(lambda: self.ended_workers >= self.workers or self.process.poll() is not None, "the end")
        try:
            self.process.wait(STARTUP_S)
        except subprocess.TimeoutExpired:
            self._fail(f"the job did not end within {STARTUP_S:.0f} s after its last step")
        self.poll()
        self._output.close()
        seconds = time.time() - self.started_at
        run = Run(self.folder, self.started_at, seconds, self.process.returncode, self.events)
        run.faults = self.faults
        for slot in range(self.workers):
            run.logs[slot] = list(Tail(self.folder / f"slot-{slot}.jsonl").lines())
        if run.status != 0:
            self._fail(f"the job ended with status {run.status}")
        return run

    def end(self) -> None:
        """Ends the job if it still runs (Ctrl-C, an error)."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._output.close()

    def _fail(self, why: str) -> None:
        self.end()
        tail = (self.folder / "output.log").read_text(errors="replace").splitlines()[-15:]
        raise DemoError("\n".join([why, f"the last lines of {self.folder / 'output.log'}:", *tail]))

    def _since(self, slot: int | None, at: float) -> str:
        """', 3.2 ms after the kill' for the last fault (of `slot` when given)."""
        faults = [f for f in self.faults if slot is None or f.slot == slot]
        if not faults:
            return ""
        what = {KILL: "kill", STOP: "stop", LOOP: "loop began"}[faults[-1].kind]
        return f", {1000 * (at - faults[-1].at):.1f} ms after the {what}"

    def _in_words(self, event: dict[str, Any]) -> str:
        kind, slot, at = event["event"], event.get("slot"), event["time"]
        if not self.faults and kind != "job_finished":
            return ""
        words = {
            "worker_suspected": f"  slot {slot} noticed{self._since(slot, at)} ({event.get('reason', '')})",
            "worker_fenced": f"  slot {slot} proven gone{self._since(slot, at)}",
            "view_installed": f"  view {event.get('view')} in force{self._since(None, at)}: {event.get('detail', '')}",
            "op_repaired": f"  slot {slot} has the result{self._since(None, at)}: {event.get('detail', '')}",
            "worker_joined": f"  slot {slot} has a new worker{self._since(slot, at)}: worker {event.get('worker')}",
            "first_step": f"  slot {slot} trains again{self._since(slot, at)}",
            "job_finished": f"job finished: {event.get('reason') or event.get('detail') or 'every worker exited 0'}",
        }
        return words.get(kind, "")


def uninterrupted(folder: Path, workers: int, epochs: int, tell: Callable[[str], None]) -> Run:
    job = Job(folder, workers, epochs, tell)
    try:
        return job.finish()
    finally:
        job.end()


def harmed(
    folder: Path, workers: int, epochs: int, faults: list[tuple[int, str, int]], tell: Callable[[str], None]
) -> Run:
    """The same training with `faults`, (step, kind, slot). A kill that missed its op is done again a little later."""
    job = Job(folder, workers, epochs, tell)
    try:
        for step, kind, slot in faults:
            job.until_step(step)
            for _ in range(STRIKES):
                job.until_spare()
                fault = job.do(kind, slot)
                if fault is not None:
                    break
            else:
                raise DemoError(f"{STRIKES} kills in a row fell between two operations; is the machine very busy?")
            job.until_replaced(fault)
        return job.finish()
    finally:
        job.end()
