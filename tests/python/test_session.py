"""Session in real jobs under `closeranks run`: workers are lost and replaced, and nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import session_training
from jobs import TOOL, Job, Running, run

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

SCRIPT = Path(__file__).with_name("session_training.py")
SOAK = os.environ.get("CLOSERANKS_SOAK") == "1"
FLAGS = ("--shrink", "--spares", "1")


def train(
    folder: Path, faults: list[dict[str, Any]], *arguments: str, flags: tuple[str, ...] = FLAGS, **keywords: Any
) -> Job:
    script = [str(SCRIPT), "--out", str(folder), "--faults", json.dumps(faults), *arguments]
    return run(folder, script, flags=flags, **keywords)


@contextmanager
def short_temporary_folder() -> Iterator[Path]:
    """Those of pytest are too deep for names of sockets."""
    folder = Path(tempfile.mkdtemp(prefix="cr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def lines_of(folder: Path, slot: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"steps-{slot}.jsonl").read_text().splitlines()]


def check(job: Job, folder: Path, slots: list[int]) -> None:
    """What holds after any faults."""
    assert job.status == 0, job.output
    assert sorted(job.results) == slots, job.output
    first = job.results[slots[0]]
    for result in job.results.values():
        for what in (
            "parameters",
            "optimizer",
            "steps",
            "epoch",
            "joins",
            "losses",
            "entries",
            "lr",
            "scale",
            "present",
        ):
            assert result[what] == first[what], (what, result["slot"])
        assert result["finite"]
        assert result["identities_kept"]
        assert result["history"] == list(range(1, result["steps"] + 1)), "no step skipped or done twice"
        assert all(result["exact"]), "each sample exactly once per epoch"
        assert result["samples_lost"] == result["samples_repeated"] == 0
        assert result["last_sequence"] == first["last_sequence"]
    # Everyone had the same parameters before and after each step, replacements included.
    by_step: dict[int, set[tuple[str, str]]] = {}
    drawn: Counter[tuple[int, int]] = Counter()
    for file in folder.glob("steps-*.jsonl"):
        for line in (json.loads(text) for text in file.read_text().splitlines()):
            by_step.setdefault(line["step"], set()).add((line["before"], line["parameters"]))
            drawn.update((line["epoch"], index) for index in line["indices"][: line["takes"]])
    assert all(len(parameters) == 1 for parameters in by_step.values())
    assert drawn.most_common(1)[0][1] == 1, "no sample was drawn by two steps that were done"


def replay(folder: Path, slots: int, length: int = 407, hidden: int = 96) -> dict[str, torch.Tensor]:
    """The job again in one process, from its workers' notes: every step's gradients, averaged by their samples."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for slot in range(slots):
        for line in lines_of(folder, slot):
            steps.setdefault(line["step"], []).append(line)
    torch.manual_seed(1)
    net, data = session_training.Net(hidden), session_training.samples(length)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    for number in sorted(steps):
        sums = [torch.zeros_like(parameter) for parameter in net.parameters()]
        total = sum(line["takes"] for line in steps[number])
        for line in steps[number]:
            if line["takes"] > 0:
                gradients = torch.autograd.grad(net(data[line["indices"]]).square().mean(), list(net.parameters()))
                for part, gradient in zip(sums, gradients, strict=True):
                    part.add_(gradient, alpha=line["takes"] / total)
        for parameter, part in zip(net.parameters(), sums, strict=True):
            parameter.grad = part
        optimizer.step()
        scheduler.step()
    return dict(net.named_parameters())


def test_lost_workers_are_replaced_and_gradients_are_those_of_the_samples(tmp_path: Path) -> None:
    # Lost between two steps, so that the notes of every step are complete.
    faults = [{"slot": 2, "step": 5, "where": "after"}, {"slot": 0, "step": 12, "where": "after"}]
    job = train(tmp_path, faults, "--joins", "2", "--pause-ms", "40", "--optimizer", "sgd", "--epochs", "2")
    check(job, tmp_path, [0, 1, 2, 3])
    assert job.excluded() == {0, 2}
    assert [job.results[slot]["life"] for slot in range(4)] == [1, 0, 1, 0]
    assert job.results[1]["present"] == [0, 1, 2, 3]
    assert {slot for _, slots in job.results[1]["joins"] for slot in slots} == {0, 2}
    for slot in (0, 2):
        step = next(step for step, slots in job.results[1]["joins"] if slot in slots)
        own = [line for line in lines_of(tmp_path, slot) if line["life"] == 1]
        assert own[0]["step"] == step + 1
    assert {event["slot"] for event in job.of("worker_joined")} == {0, 2}
    trained = torch.load(tmp_path / "parameters-1.pt")
    for name, expected in replay(tmp_path, 4).items():
        torch.testing.assert_close(
            trained[name], expected, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("seed", range(10 if SOAK else 2))
def test_random_kills(seed: int, tmp_path: Path) -> None:
    kills = 30 if SOAK else 15
    policy = "exact" if seed % 2 else "repair"
    arguments = ["--kills", str(kills), "--seed", str(seed), "--policy", policy, "--pause-ms", "5", "--epochs", "1"]
    flags = ("--shrink", "--spares", "2", "--max-replacements", "1000")
    job = train(tmp_path, [], *arguments, flags=flags, timeout_s=60 + 20 * kills)
    assert job.results, job.output
    anyone = next(iter(job.results.values()))
    check(job, tmp_path, sorted(job.results))
    assert set(job.results) <= set(anyone["present"])
    assert len(anyone["kills"]) == kills
    assert len(job.of("worker_excluded")) >= kills // 2, "one that is about to die may be drawn again"


def test_an_epoch_ends_while_workers_die_and_two_runs_end_alike(tmp_path: Path) -> None:
    """98 samples among 4: six steps, then two that are left. Everything is pinned: the moments, and the joins."""
    faults = [
        {"slot": 1, "epoch": 0, "round": -1, "where": "gradient"},  # with its last sample in hand
        {"slot": 3, "epoch": 1, "round": 1, "where": "gradient"},  # in the closing step, in which it pads
        {"slot": 0, "epoch": 2, "round": -1, "where": "boundary"},  # the last sample is used, the epoch not yet over
    ]
    arguments = ["--length", "98", "--epochs", "4", "--joins", "3", "--await-replacement", "60"]
    results = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        job = train(folder, faults, *arguments)
        check(job, folder, [0, 1, 2, 3])
        assert job.excluded() == {0, 1, 3}
        results.append(job.results[2])
    one, two = results
    for what in ("entries", "losses", "joins", "steps", "parameters", "optimizer", "lr"):
        assert one[what] == two[what], what
    # Each is missing in the step that it died in (the last one in the next), and in again right after it.
    assert [slots for _, slots in one["losses"]] == [[1], [3], [0]]
    assert one["joins"] == one["losses"]


def test_exact_repeats_the_step_that_lost_a_worker(tmp_path: Path) -> None:
    """With accumulation, loader processes and a scaler, the second time as an epoch ends. Later one leaves for good."""
    faults = [
        {"slot": 3, "step": 4, "where": "step", "delay_ms": 0},
        {"slot": 1, "epoch": 0, "round": -1, "where": "backward", "delay_ms": 1},
        {"slot": 2, "step": 23, "where": "after", "what": "leave"},
    ]
    arguments = ["--accumulate", "3", "--loader-workers", "1", "--scaler", "--optimizer", "sgd", "--epochs", "3"]
    with short_temporary_folder() as temporary:
        job = train(
            tmp_path,
            faults,
            *(*arguments, "--policy", "exact", "--joins", "2", "--await-replacement", "60"),
            environment={"TMPDIR": str(temporary)},
        )
        assert not list(temporary.iterdir()), "of the killed workers' loader processes nothing stays"
    check(job, tmp_path, [0, 1, 3])
    assert job.excluded() == {1, 2, 3}
    assert [slots for _, slots in job.results[0]["losses"]][-1] == [2]
    for step, slots in job.results[0]["losses"]:
        for file in (0, 1, 3):
            for line in lines_of(tmp_path, file):
                assert line["step"] != step or not set(slots) & set(line["present"])
    left = json.loads((tmp_path / "left-2.json").read_text())
    assert left["step"] == 23
    assert left["children_live"] == [True]


def test_kills_while_somebody_joins(tmp_path: Path) -> None:
    """A newcomer dies while it reads the state, the next one's source while it is read from, then the lowest source."""
    faults = [
        {"slot": 2, "step": 3, "where": "after"},
        {"slot": 2, "life": 1, "where": "receive"},
        # Views: 1 begins, 2 is without the first one; joins are 3 and 4; 5 is without slot 1.
        {"slot": 1, "where": "serve", "from_round": 4},
        {"slot": 0, "where": "serve", "from_round": 6},
    ]
    flags = ("--shrink", "--spares", "2")
    job = train(tmp_path, faults, "--joins", "3", "--pause-ms", "10", "--hidden", "700", flags=flags, timeout_s=300)
    check(job, tmp_path, [0, 1, 2, 3])
    assert job.excluded() >= {0, 1, 2}
    assert [job.results[slot]["life"] for slot in (0, 1, 3)] == [1, 1, 0]
    assert job.results[2]["life"] >= 2
    assert len(job.of("join_cancelled")) >= 3


def test_a_job_goes_on_from_its_checkpoint_and_from_a_drain(tmp_path: Path) -> None:
    """Also with loader processes, which a drain does not disturb."""
    whole, drained = tmp_path / "whole", tmp_path / "drained"
    for folder in (whole, drained):
        folder.mkdir()
    reference = train(whole, [], "--save-at", "30", "--epochs", "2")
    check(reference, whole, [0, 1, 2, 3])
    names = [path.name for path in (whole / "checkpoints").iterdir()]
    assert len(names) == 1 and names[0].endswith("-000000030.pt")

    (whole / "checkpoints").rename(drained / "checkpoints")
    arguments = ["--resume", "--save-at", "-1", "--loader-workers", "2", "--epochs", "400"]
    job = Running(drained, [str(SCRIPT), "--out", str(drained), *arguments], 4, FLAGS)
    while not (drained / "steps-0.jsonl").exists() or len(lines_of(drained, 0)) < 5:
        assert job.process.poll() is None, job.lines
        time.sleep(0.02)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 128 + signal.SIGTERM, job.lines
    assert not [line for line in job.lines if "Traceback" in line or "DataLoader" in line], job.lines
    exits = [e["reason"] for e in job.events() if e["event"] == "worker_exited" and e.get("slot") is not None]
    assert exits == ["exited with status 0"] * 4
    left = [json.loads((drained / f"left-{slot}.json").read_text()) for slot in range(4)]
    assert all(entry["children_live"] == [True, True] for entry in left), "they die with their loader, not before"
    expected = {line["step"]: line["parameters"] for line in lines_of(whole, 0)}
    for line in lines_of(drained, 3):
        if line["present"] == [0, 1, 2, 3] and line["step"] in expected:
            assert line["parameters"] == expected[line["step"]], "bitwise as if it had never stopped"
    assert lines_of(drained, 3)[0]["step"] == 31

    epochs = max(entry["epoch"] for entry in left) + 1
    resumed = train(drained, [], "--resume", "--epochs", str(epochs))
    check(resumed, drained, [0, 1, 2, 3])
    assert resumed.results[0]["resumed_at"] == max(entry["step"] for entry in left)
