"""Starts the demo's two jobs, strikes workers in mid all-reduce, and tells what happens as it happens."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRAINING = Path(__file__).with_name("training.py")
STARTUP_S = 90.0  # importing torch in every worker on a busy machine takes about ten
STALL_S = 30.0  # no worker has finished a step for this long: something is broken


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


@dataclass
class Fault:
    """One worker killed from outside while its all-reduce was in flight."""

    kind: str
    slot: int
    killed_at: float  # unix seconds of the kill call
    sequence: int  # entry of the all-reduce it was in
    evidence: dict[str, Any]  # what the op's own words said before and after (closeranks strike)
    step: int = -1
    detected_ms: float = -1.0
    next_op_ms: float = -1.0


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


class Job:
    """One `closeranks run` of the training script, watched from outside."""

    def __init__(self, folder: Path, workers: int, steps: int, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.workers = workers
        self.tell = tell
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.jsonl"):
            old.unlink()
        self.events_file = folder / "events.jsonl"
        self.events: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self._event_tail = Tail(self.events_file)
        self._step_tails = {slot: Tail(folder / f"slot-{slot}.jsonl") for slot in range(workers)}
        self.steps_seen = dict.fromkeys(range(workers), -1)
        self.started_at = time.time()
        self._output = (folder / "output.log").open("w")
        run_flags = ["--nproc-per-node", str(workers), "--shrink", "--events", str(self.events_file)]
        script = [str(TRAINING), "--steps", str(steps), "--out", str(folder)]
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
        for slot, tail in self._step_tails.items():
            for record in tail.lines():
                if "step" in record:
                    if all(seen < 0 for seen in self.steps_seen.values()):
                        self.tell(f"first training step after {time.time() - self.started_at:.1f} s")
                    self.steps_seen[slot] = record["step"]

    def until_step(self, step: int) -> None:
        """Waits until some worker has finished `step`; DemoError when the job ends or stalls before."""
        progress_at, best = time.monotonic(), -1
        while max(self.steps_seen.values()) < step:
            self.poll()
            now = max(self.steps_seen.values())
            if now > best:
                progress_at, best = time.monotonic(), now
            if self.process.poll() is not None:
                self._fail(f"the job ended with status {self.process.returncode} before step {step}")
            if time.monotonic() - progress_at > (STARTUP_S if best < 0 else STALL_S):
                self._fail(f"no worker finished a step for {STALL_S:.0f} s (last: {best})")
            time.sleep(0.01)

    def strike(self, slot: int) -> Fault | None:
        """SIGKILL for the worker of `slot` in mid all-reduce. None: it died, but not inside an op (not counted)."""
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
        if not evidence["hit"]:
            self.tell(f"the kill of slot {slot} fell between two operations: not counted")
            return None
        fault = Fault("kill", slot, evidence["kill_unix_ns"] / 1e9, evidence["sequence"], evidence)
        self.tell(
            f"[bold]slot {slot} killed[/bold] (SIGKILL, pid {evidence['pid']}) inside all_reduce #{fault.sequence}: "
            f"it had entered, {evidence['own_blocks_distributed_after']} of its {evidence['own_blocks']} blocks "
            "were distributed"
        )
        self.faults.append(fault)
        return fault

    def finish(self) -> Run:
        deadline = time.monotonic() + STARTUP_S
        while self.process.poll() is None:
            self.poll()
            if time.monotonic() > deadline:
                self._fail(f"the job did not end within {STARTUP_S:.0f} s after its last step")
            time.sleep(0.01)
        self.poll()
        self._output.close()
        run = Run(
            self.folder,
            self.started_at,
            time.time() - self.started_at,
            self.process.returncode,
            self.events,
        )
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

    def _since_kill(self, slot: int | None, at: float) -> str:
        """', 3.2 ms after the kill' for the last fault (of `slot` when given)."""
        faults = [f for f in self.faults if slot is None or f.slot == slot]
        return f", {1000 * (at - faults[-1].killed_at):.1f} ms after the kill" if faults else ""

    def _in_words(self, event: dict[str, Any]) -> str:
        kind, slot, at = event["event"], event.get("slot"), event["time"]
        if kind == "worker_suspected":
            return f"  slot {slot} noticed{self._since_kill(slot, at)} ({event.get('reason', '')})"
        if kind == "worker_fenced":
            return f"  slot {slot} proven gone{self._since_kill(slot, at)}"
        if kind == "view_installed" and self.faults:
            return f"  view {event.get('view')} in force{self._since_kill(None, at)}: {event.get('detail', '')}"
        if kind == "op_repaired":
            return f"  slot {slot} has the result{self._since_kill(None, at)}: {event.get('detail', '')}"
        if kind == "job_finished":
            return f"job finished: {event.get('reason') or event.get('detail') or 'every worker exited 0'}"
        return ""


def uninterrupted(folder: Path, workers: int, steps: int, tell: Callable[[str], None]) -> Run:
    job = Job(folder, workers, steps, tell)
    try:
        job.until_step(steps - 1)
        return job.finish()
    finally:
        job.end()


def struck(
    folder: Path,
    workers: int,
    steps: int,
    strikes: list[tuple[int, int]],
    tell: Callable[[str], None],
) -> Run:
    """The same training with `strikes`, pairs (step, slot). Starts over (three times) when a kill missed its op."""
    for _ in range(3):
        job = Job(folder, workers, steps, tell)
        try:
            missed = False
            for step, slot in strikes:
                job.until_step(step)
                if job.strike(slot) is None:
                    missed = True
                    break
            if missed:
                tell("starting the training over, to kill inside an operation")
                continue
            job.until_step(steps - 1)
            return job.finish()
        finally:
            job.end()
    raise DemoError("three trainings in a row, a kill fell between two operations; is the machine very busy?")
