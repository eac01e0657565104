"""Workers die at every kind of moment in real DDP training; checked is what the survivors computed.

One job loses up to three workers, since a start costs far more than a kill. The moments are drawn from a seed; a
failing job prints its faults and replays with them (fault_training.py --faults ...). CLOSERANKS_SOAK=1: 300 kills.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import jobs

SCRIPT = str(Path(__file__).with_name("fault_training.py"))
SOAK = os.environ.get("CLOSERANKS_SOAK") == "1"
STEPS = 24


def drawn_faults(seed: int) -> list[dict[str, Any]]:
    """Three kills of three different slots: moments of every kind, some within one view change."""
    draw = random.Random(seed)
    slots = draw.sample(range(4), 3)
    faults = []
    step = draw.choice([0, 1, 1, 2, 3])
    for slot in slots:
        where = "rebuild" if step == 1 else draw.choice(["step", "step", "forward", "backward"])
        faults.append({"slot": slot, "step": step, "where": where, "delay_ms": draw.uniform(0, 25)})
        step += draw.choice([0, 0, 1, 5])  # 0: the next one dies while this one's view is changed
    return faults


def check_survivors(job: jobs.Job, dead: set[int], steps: int, faults: object) -> None:
    context = f"faults {json.dumps(faults)}\n{job.output[-6000:]}"
    alive = sorted(set(range(4)) - dead)
    assert job.status == 0, context
    assert sorted(job.results) == alive, context
    assert job.excluded() == dead, context
    for slot in alive:
        result = job.results[slot]
        assert result["steps"] == steps, context
        assert result["finite"], context
        assert result["present"] == alive, context
    assert len({job.results[slot]["parameters"] for slot in alive}) == 1, f"survivors differ: {context}"
    # Contributors of each op are the same on every survivor that remembers it, and survivors are always in.
    merged: dict[str, list[int]] = {}
    for slot in alive:
        for sequence, contributors in job.results[slot]["contributors"].items():
            assert set(alive) <= set(contributors), context
            assert merged.setdefault(sequence, contributors) == contributors, context


@pytest.mark.parametrize("seed", range(100 if SOAK else 10))
def test_three_random_kills(seed: int, tmp_path: Path) -> None:
    faults = drawn_faults(seed)
    job = jobs.run(tmp_path, [SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--faults", json.dumps(faults)])
    check_survivors(job, {fault["slot"] for fault in faults}, STEPS, faults)
    shutil.rmtree(tmp_path / "log", ignore_errors=True)


def train(tmp_path: Path, faults: list[dict[str, Any]], *flags: str, script: tuple[str, ...] = ()) -> jobs.Job:
    arguments = [SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--faults", json.dumps(faults), *script]
    return jobs.run(tmp_path, arguments, flags=flags or ("--shrink",))


def test_stops_an_exception_and_an_exit_while_others_go_on(tmp_path: Path) -> None:
    faults = [
        {"slot": 0, "step": 3, "where": "step", "what": "stop_second"},  # changes nothing
        {"slot": 1, "step": 6, "where": "step", "what": "stop"},
        {"slot": 3, "step": 10, "where": "step", "what": "raise"},
        {"slot": 2, "step": 14, "where": "step", "what": "exit0"},
    ]
    job = train(tmp_path, faults, "--shrink", "--stop-timeout", "3")
    check_survivors(job, {1, 2, 3}, STEPS, faults)
    reasons = {event["slot"]: event["reason"] for event in job.of("worker_suspected")}
    assert set(reasons) == {1, 2, 3}, "the one that was stopped for a second is none of them"
    assert "stopped" in reasons[1]
    assert job.output.count("RuntimeError: the data of this worker is broken") == 1


def test_every_worker_dies(tmp_path: Path) -> None:
    faults = [{"slot": slot, "step": 4, "where": "step", "delay_ms": slot} for slot in range(4)]
    job = train(tmp_path, faults)
    assert job.status == 128 + 9, job.output
    # One by one, or "slots 0, 1, 2 and 3" where they died alike.
    lists = re.findall(r"slots? (\d+(?:(?:, | and )\d+)*)", job.output)
    assert {int(number) for text in lists for number in re.findall(r"\d+", text)} == {0, 1, 2, 3}, job.output


def test_without_shrink_every_worker_gets_the_named_error(tmp_path: Path) -> None:
    faults = [{"slot": 2, "step": 5, "where": "step", "delay_ms": 3}]
    job = train(tmp_path, faults, "--stop-timeout", "5")
    assert job.status == 128 + 9, job.output
    assert "PeerLost" in job.output
    errors = [line for line in job.output.splitlines() if "PeerLost" in line]
    assert errors and all("slot 2" in line for line in errors), job.output


def test_unmodified_ddp_script_goes_on_with_fewer_workers(tmp_path: Path) -> None:
    faults = [{"slot": 2, "step": 5, "where": "step", "delay_ms": 3}]
    job = train(tmp_path, faults, "--shrink", script=("--unmodified",))
    check_survivors(job, {2}, STEPS, faults)


def test_unmodified_script_that_needs_slot_0_ends_with_the_hint(tmp_path: Path) -> None:
    faults = [{"slot": 0, "step": 5, "where": "step", "delay_ms": 3}]
    job = train(tmp_path, faults, "--shrink", script=("--unmodified",))
    assert job.status != 0
    assert "slot 0" in job.output and "closeranks.data_parallel" in job.output, job.output
