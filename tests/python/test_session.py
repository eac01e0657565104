"""Session in real jobs under `closeranks run`: workers are lost and replaced, and nothing else changes."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import session_training
from jobs import TOOL, Job, run

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

SCRIPT = Path(__file__).with_name("session_training.py")
SOAK = os.environ.get("CLOSERANKS_SOAK") == "1"
FLAGS = ("--shrink", "--spares", "1")


def train(
    folder: Path, faults: list[dict[str, Any]], *arguments: str, flags: tuple[str, ...] = FLAGS, **keywords: Any
) -> Job:
    script = [str(SCRIPT), "--out", str(folder), "--faults", json.dumps(faults), *arguments]
    return run(folder, script, flags=flags, **keywords)


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


def test_gradients_after_a_join_are_those_of_the_samples(tmp_path: Path) -> None:
    # Lost between two steps, so that the notes of every step are complete.
    faults = [{"slot": 2, "step": 5, "where": "after"}, {"slot": 0, "step": 12, "where": "after"}]
    job = train(tmp_path, faults, "--joins", "2", "--pause-ms", "40", "--optimizer", "sgd", "--epochs", "2")
    check(job, tmp_path, [0, 1, 2, 3])
    trained = torch.load(tmp_path / "parameters-1.pt")
    for name, expected in replay(tmp_path, 4).items():
        torch.testing.assert_close(
            trained[name], expected, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_lost_workers_are_replaced(tmp_path: Path) -> None:
    faults = [
        {"slot": 2, "step": 5, "where": "backward"},
        {"slot": 0, "step": 12, "where": "step", "delay_ms": 2},
    ]
    job = train(tmp_path, faults, "--joins", "2", "--pause-ms", "20")
    check(job, tmp_path, [0, 1, 2, 3])
    assert job.excluded() == {0, 2}
    assert [job.results[slot]["life"] for slot in range(4)] == [1, 0, 1, 0]
    assert job.results[1]["present"] == [0, 1, 2, 3]
    joined = {slot for _, slots in job.results[1]["joins"] for slot in slots}
    assert joined == {0, 2}
    for slot in joined:
        step = next(step for step, slots in job.results[1]["joins"] if slot in slots)
        own = [line for line in lines_of(tmp_path, slot) if line["life"] == 1]
        assert own[0]["step"] == step + 1
    assert {event["slot"] for event in job.of("worker_joined")} == {0, 2}


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


def test_exact_repeats_the_step_that_lost_a_worker(tmp_path: Path) -> None:
    faults = [
        {"slot": 3, "step": 4, "where": "step", "delay_ms": 0},
        {"slot": 1, "step": 9, "where": "backward"},
    ]
    job = train(tmp_path, faults, "--policy", "exact", "--joins", "2", "--pause-ms", "20")
    check(job, tmp_path, [0, 1, 2, 3])
    for step, slots in job.results[0]["losses"]:
        for file in (0, 2):
            line = next(line for line in lines_of(tmp_path, file) if line["step"] == step)
            assert not set(slots) & set(line["present"])


def test_accumulation_loader_workers_and_a_scaler(tmp_path: Path) -> None:
    faults = [{"slot": 1, "step": 3, "where": "backward", "delay_ms": 1}]
    arguments = ["--accumulate", "3", "--loader-workers", "1", "--scaler", "--optimizer", "sgd", "--joins", "1"]
    job = train(tmp_path, faults, *arguments, "--pause-ms", "30")
    check(job, tmp_path, [0, 1, 2, 3])
    assert job.excluded() == {1}


def test_a_newcomer_that_dies_is_followed_by_another(tmp_path: Path) -> None:
    faults = [
        {"slot": 2, "step": 3, "where": "after"},
        {"slot": 2, "life": 1, "where": "join", "delay_ms": 5},
    ]
    job = train(tmp_path, faults, "--joins", "1", "--pause-ms", "20", "--hidden", "700")
    check(job, tmp_path, [0, 1, 2, 3])
    assert job.results[2]["life"] >= 1


def test_a_worker_leaves_and_nobody_takes_its_slot(tmp_path: Path) -> None:
    job = train(tmp_path, [{"slot": 1, "step": 4, "where": "after", "what": "leave"}], "--epochs", "2")
    check(job, tmp_path, [0, 2, 3])
    assert json.loads((tmp_path / "left-1.json").read_text()) == {"slot": 1, "step": 4}
    assert job.results[0]["losses"] == [[5, [1]]]
    assert job.results[0]["joins"] == []


def test_a_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = train(tmp_path, [], "--save-at", "30", "--epochs", "2")
    check(whole, tmp_path, [0, 1, 2, 3])
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert len(names) == 1 and names[0].endswith("-000000030.pt")
    for file in tmp_path.glob("steps-*.jsonl"):
        file.unlink()
    resumed = train(tmp_path, [], "--resume", "--epochs", "2")
    check(resumed, tmp_path, [0, 1, 2, 3])
    assert resumed.results[3]["resumed_at"] == 30
    assert resumed.results[0]["parameters"] == whole.results[0]["parameters"], "bitwise as if it had never stopped"
    assert resumed.results[0]["entries"] == whole.results[0]["entries"]
