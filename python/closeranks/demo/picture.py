"""The demo's picture: loss of both runs over the steps, faults and replacements marked."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .runs import Run

BLUE, ORANGE, RED, GREEN, GREY = "#2b6cb0", "#dd6b20", "#c53030", "#2f855a", "#718096"
WINDOW = 5  # steps over which a curve is smoothed: an epoch's last steps have few images


def mean_loss(run: Run) -> tuple[list[int], list[float]]:
    """Loss per step, averaged over the slots that did the step and over WINDOW steps."""
    by_step: dict[int, list[float]] = {}
    for log in run.logs.values():
        for record in log:
            if "step" in record:
                by_step.setdefault(record["step"], []).append(record["loss"])
    steps = sorted(by_step)
    losses = [sum(by_step[step]) / len(by_step[step]) for step in steps]
    smooth = [sum(losses[max(0, i - WINDOW + 1) : i + 1]) / min(i + 1, WINDOW) for i in range(len(losses))]
    return steps, smooth


def draw_losses(axes: Axes, plain: Run, faulty: Run) -> None:
    axes.plot(*mean_loss(plain), color=BLUE, linewidth=1.0, alpha=0.8, label="uninterrupted")
    axes.plot(*mean_loss(faulty), color=ORANGE, linewidth=1.0, alpha=0.9, label="four workers lost and replaced")
    axes.set_yscale("log")
    axes.set_ylabel("training loss")
    for number, fault in enumerate(faulty.faults):
        axes.axvline(fault.step, color=RED, linewidth=1.0, linestyle="--")
        axes.annotate(
            f"slot {fault.slot} {fault.words}\nnext op {fault.next_op_ms / 1000:.2f} s\n"
            f"replaced {fault.replaced_ms / 1000:.1f} s",
            (fault.step, 0.98 - 0.02 * number),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=RED,
        )
    axes.legend(loc="lower left", fontsize=8, frameon=False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.6)


def draw_slots(axes: Axes, faulty: Run) -> None:
    """Bars for the steps each worker did, one row per slot; a gap is a vacant slot."""
    for slot, log in faulty.logs.items():
        done: dict[int, list[int]] = {}
        for record in log:
            if "step" in record:
                done.setdefault(record["worker"], []).append(record["step"])
        for number, (worker, steps) in enumerate(done.items()):
            color = GREY if number == 0 else GREEN
            axes.barh(slot, max(steps) - min(steps) + 1, left=min(steps), color=color, height=0.55, alpha=0.75)
            axes.text(min(steps) + 2, slot, f"worker {worker}", va="center", fontsize=7, color="white")
    for fault in faulty.faults:
        axes.plot(fault.step, fault.slot, marker="X", color=RED, markersize=8)
        axes.axvline(fault.step, color=RED, linewidth=1.0, linestyle="--")
    axes.set_yticks(list(faulty.logs), [f"slot {slot}" for slot in faulty.logs], fontsize=8)
    axes.set_ylim(len(faulty.logs) - 0.4, -0.6)
    axes.set_xlabel("training step")


def draw(path: Path, plain: Run, faulty: Run, steps: int) -> None:
    figure, (losses, slots) = plt.subplots(
        2, 1, figsize=(11, 6.5), sharex=True, height_ratios=(3, 1.3), layout="constrained"
    )
    losses.set_title(
        f"Training on {len(faulty.logs)} workers; {len(faulty.faults)} of them are lost and replaced",
        loc="left",
        fontsize=11,
    )
    draw_losses(losses, plain, faulty)
    draw_slots(slots, faulty)
    for axes in (losses, slots):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, steps)
    figure.savefig(path, dpi=130)
    plt.close(figure)
