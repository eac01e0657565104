"""`closeranks bench repair`: from a SIGKILL inside an all_reduce to its end at the last survivor.

Each kill has a job of its own. Its workers do all_reduces back to back (torch workers compute in between, as training
does); `closeranks strike` watches the victim's words from outside and kills it in the middle of one, so that the
survivors cannot finish it as if nothing had been. The op they finish first after that is the struck one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closeranks.bench.compare import our_job, tool, worker_program
from closeranks.bench.report import duration, words
from closeranks.bench.sides import BenchError, Sides

KILLS = {"shared": 15, "private": 15, "torch": 7}
# Long enough for the kill to come; the survivors stop when they are fewer.
MOST_RUNS = 20000
BARS_MS = {"shared": 60, "private": 60, "torch": 150}


def strike_one(memory: str, processes: int, bytes_: int, victim: int) -> float | None:
    """Seconds from the kill to the struck op's end at the last survivor; None: it could not be struck inside."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder, Sides(Path(folder)) as sides:
        events = Path(folder) / "events.jsonl"
        if memory == "torch":
            command = ["-m", "closeranks.bench.torch_worker", "closeranks"]
            job = our_job("ours", processes, Path(folder), command, "--events", str(events))
        else:
            command = [str(worker_program())]
            job = our_job("ours", processes, Path(folder), command, "--events", str(events), "--no-python")
        side = sides.start(job)
        sides.gather()
        side.prepare("repair", "all_reduce", bytes_, memory)
        storm = f"storm repair {MOST_RUNS}"
        side.begin(storm)
        struck = subprocess.run(
            [str(tool()), "strike", "--events", str(events), "--slot", str(victim), "--timeout", "20"],
            check=False,
            capture_output=True,
            text=True,
        )
        if struck.returncode != 0:
            raise BenchError(f"the worker could not be killed inside an all_reduce: {struck.stderr.strip()}")
        strike = json.loads(struck.stdout)
        answers = side.answers(storm, without=victim)
        side.connections[victim] = None
        if not strike["hit"]:
            return None
        killed = int(strike["kill_unix_ns"])
        ends = [[int(word) for word in answer] for answer in answers.values()]
        if any(max(own) <= killed for own in ends):
            return None
        return max(min(end for end in own if end > killed) for own in ends) / 1e9 - killed / 1e9


def measure(processes: int, bytes_: int, memories: tuple[str, ...], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each memory. Raises BenchError."""
    rows = []
    for memory in memories:
        times: list[float] = []
        tries = 0
        while len(times) < KILLS[memory] and tries < 2 * KILLS[memory]:
            seconds = strike_one(memory, processes, bytes_, tries % processes)
            tries += 1
            if seconds is not None:
                times.append(seconds)
        if len(times) < KILLS[memory]:
            raise BenchError(f"only {len(times)} of {tries} kills fell inside an all_reduce")
        median, worst = statistics.median(times), max(times)
        who = "busy torch workers" if memory == "torch" else f"C++ workers, {memory} memory"
        say(
            f"all_reduce of {words(bytes_)}, {processes} {who}: SIGKILL inside it to its end at the last survivor: "
            f"median {duration(1e6 * median)}, worst of {len(times)} {duration(1e6 * worst)}"
        )
        rows.append(
            {
                "op": "repair",
                "processes": processes,
                "hosts": 1,
                "bytes": bytes_,
                "memory": memory,
                "median_us": round(1e6 * median, 1),
                "worst_us": round(1e6 * worst, 1),
                "kills": len(times),
                "times_us": [round(1e6 * seconds, 1) for seconds in times],
            }
        )
    return rows
