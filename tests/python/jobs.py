"""Running jobs under the built tool, and checking that nothing of them is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
TOOL = os.environ.get("CLOSERANKS_TOOL", str(Path(sys.executable).with_name("closeranks")))


@dataclass
class Job:
    """A finished `closeranks run`."""

    status: int
    output: str
    seconds: float
    events: list[dict[str, Any]] = field(default_factory=list)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    def excluded(self) -> set[int]:
        return {e["slot"] for e in self.of("worker_excluded")}


def pids_of(events: list[dict[str, Any]]) -> list[int]:
    return [e["pid"] for e in events if e["event"] == "worker_started"]


def leftovers(pids: list[int]) -> list[int]:
    """Processes of `pids` that still run; a moment is granted to the kernel."""
    deadline = time.monotonic() + 5
    while True:
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def run(
    folder: Path,
    script: list[str],
    *,
    workers: int = 4,
    flags: tuple[str, ...] = ("--shrink",),
    timeout_s: float = 120,
    environment: dict[str, str] | None = None,
) -> Job:
    """`closeranks run FLAGS --nproc-per-node WORKERS SCRIPT...` to its end; asserts that no process is left."""
    events_file = folder / "events.jsonl"
    command = [TOOL, "run", "--nproc-per-node", str(workers), "--events", str(events_file)]
    command += ["--log-dir", str(folder / "log"), *flags, *script]
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(environment or {})}
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            output, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        raise AssertionError(f"the job did not end within {timeout_s} s; its output:\n{output[-6000:]}") from None
    job = Job(process.returncode, output, time.monotonic() - start)
    if events_file.exists():
        job.events = [json.loads(line) for line in events_file.read_text().splitlines()]
    for file in folder.glob("slot-*.json"):
        result = json.loads(file.read_text())
        job.results[result["slot"]] = result
    assert not leftovers(pids_of(job.events)), "workers are left behind"
    return job


class Running:
    """A job in the background, with its output and events as they come. Ended with its test (conftest.py)."""

    started: ClassVar[list[Running]] = []

    def __init__(self, folder: Path, command: list[str], workers: int = 2, flags: tuple[str, ...] = ()) -> None:
        self.events_file = folder / "events.jsonl"
        full = [TOOL, "run", "--nproc-per-node", str(workers), "--events", str(self.events_file)]
        full += ["--log-dir", str(folder / "log"), *flags, *command]
        self.process = subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        Running.started.append(self)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str, times: int = 1, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while sum(text in line for line in list(self.lines)) < times:
            assert time.monotonic() < deadline, f"no {text!r} in {self.lines}"
            time.sleep(0.01)

    def wait_for_event(self, name: str, times: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
        """The events of that name, at least `times`, as soon as they are there."""
        deadline = time.monotonic() + seconds
        while True:
            found = [event for event in self.events() if event["event"] == name]
            if len(found) >= times:
                return found
            assert time.monotonic() < deadline, f"no {name} in {self.lines}"
            assert self.process.poll() is None, f"the job has ended without {name}: {self.lines}"
            time.sleep(0.02)

    def events(self) -> list[dict[str, Any]]:
        if not self.events_file.exists():
            return []
        # A line that crosses a page may be seen in part while it is written.
        whole, _, _ = self.events_file.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def pid(self, slot: int) -> int:
        return next(int(str(e["pid"])) for e in self.events() if e["event"] == "worker_started" and e["slot"] == slot)

    def end(self, seconds: float = 90) -> int:
        status = self.process.wait(timeout=seconds)
        self.reader.join(timeout=10)
        assert not leftovers(pids_of(self.events()))
        return status

    def stop(self) -> None:
        """Ends it by force if it still runs: a test that failed has not."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
