"""The demo's picture: loss of both runs over the steps, faults and views marked."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .runs import Run

BLUE, ORANGE, RED, GREY = "#2b6cb0", "#dd6b20", "#c53030", "#718096"


def mean_loss(run: Run) -> tuple[list[int], list[float]]:
    """Loss per step, averaged over the slots that did the step."""
    by_step: dict[int, list[float]] = {}
    for log in run.logs.values():
        for record in log:
            if "step" in record:
                by_step.setdefault(record["step"], []).append(record["loss"])
    steps = sorted(by_step)
    return steps, [sum(by_step[step]) / len(by_step[step]) for step in steps]


def draw_losses(axes: Axes, plain: Run, faulty: Run) -> None:
    axes.plot(*mean_loss(plain), color=BLUE, linewidth=1.0, alpha=0.8, label="uninterrupted")
    axes.plot(
        *mean_loss(faulty),
        color=ORANGE,
        linewidth=1.0,
        alpha=0.9,
        label="two workers killed",
    )
    axes.set_yscale("log")
    axes.set_ylabel("training loss")
    for fault in faulty.faults:
        axes.axvline(fault.step, color=RED, linewidth=1.2, linestyle="--")
        axes.annotate(
            f"slot {fault.slot} killed\nnoticed {fault.detected_ms:.0f} ms\nnext op {fault.next_op_ms:.0f} ms",
            (fault.step, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(6, 0),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=RED,
        )
    axes.legend(loc="lower left", fontsize=8, frameon=False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.6)


def draw_slots(axes: Axes, faulty: Run, steps: int) -> None:
    """One bar per slot, as long as its worker lived; views named where they begin."""
    for slot, log in faulty.logs.items():
        done = [record["step"] for record in log if "step" in record]
        axes.barh(slot, (max(done, default=-1) + 1), color=GREY, height=0.55, alpha=0.75)
    starts = [0, *(fault.step for fault in faulty.faults)]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], steps], strict=True), start=1):
        axes.text(
            (start + end) / 2,
            -0.85,
            f"view {number}",
            ha="center",
            va="center",
            fontsize=8,
            color=GREY,
        )
    for fault in faulty.faults:
        axes.plot(fault.step, fault.slot, marker="X", color=RED, markersize=9)
        axes.axvline(fault.step, color=RED, linewidth=1.2, linestyle="--")
    axes.set_yticks(list(faulty.logs), [f"slot {slot}" for slot in faulty.logs], fontsize=8)
    axes.set_ylim(len(faulty.logs) - 0.4, -1.3)
    axes.set_xlabel("training step")


def draw(path: Path, plain: Run, faulty: Run, steps: int) -> None:
    figure, (losses, slots) = plt.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=(3, 1.2), layout="constrained"
    )
    losses.set_title(
        "Training on 4 workers, two of them killed in mid all-reduce",
        loc="left",
        fontsize=11,
    )
    draw_losses(losses, plain, faulty)
    draw_slots(slots, faulty, steps)
    for axes in (losses, slots):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, steps)
    figure.savefig(path, dpi=130)
    plt.close(figure)
