"""What the faults cost: measured from the events and from what the workers wrote, nothing assumed."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .runs import Fault, Run

ACCURACY_FLOOR = 0.95
ACCURACY_DIFFERENCE = 0.01


def survivors(run: Run) -> list[int]:
    """Slots whose workers reached the end of the script."""
    return [slot for slot, log in run.logs.items() if any("parameters" in record for record in log)]


def closing_record(run: Run, slot: int) -> dict[str, Any]:
    return next(record for record in run.logs[slot] if "parameters" in record)


def steps_lost(run: Run, steps: int) -> int:
    """Steps skipped or done twice, on the survivor where it is worst."""
    worst = 0
    for slot in survivors(run):
        done = [record["step"] for record in run.logs[slot] if "step" in record]
        skipped = len(set(range(steps)) - set(done))
        repeated = len(done) - len(set(done))
        worst = max(worst, skipped + repeated)
    return worst


def measure(run: Run, fault: Fault) -> None:
    """Fills step, detected_ms and next_op_ms of `fault` from the run."""
    reports = [
        event["time"]
        for event in run.events
        if event["event"] == "worker_suspected" and event.get("slot") == fault.slot and event["time"] >= fault.killed_at
    ]
    fault.detected_ms = 1000 * (min(reports) - fault.killed_at) if reports else float("inf")
    slowest = 0.0
    for slot in survivors(run):
        finished = [
            record["time"]
            for record in run.logs[slot]
            if record.get("kind") == "all_reduce"
            and record["op"] >= fault.sequence
            and record["time"] >= fault.killed_at
        ]
        slowest = max(slowest, min(finished) - fault.killed_at if finished else float("inf"))
    fault.next_op_ms = 1000 * slowest
    ended = [
        record["step"]
        for slot in survivors(run)
        for record in run.logs[slot]
        if "step" in record and record["time"] < fault.killed_at
    ]
    fault.step = max(ended, default=-1) + 1


def build(plain: Run, faulty: Run, workers: int, steps: int) -> dict[str, Any]:
    """The report's content (report.json)."""
    for fault in faulty.faults:
        measure(faulty, fault)
    alive = survivors(faulty)
    fingerprints = {closing_record(faulty, slot)["parameters"] for slot in alive}
    return {
        "workers": workers,
        "steps": steps,
        "accuracy": min(closing_record(faulty, slot)["accuracy"] for slot in alive),
        "accuracy_uninterrupted": min(closing_record(plain, slot)["accuracy"] for slot in survivors(plain)),
        "steps_lost": steps_lost(faulty, steps),
        "parameters_identical": len(fingerprints) == 1,
        "survivors": alive,
        "seconds": round(faulty.seconds, 2),
        "seconds_uninterrupted": round(plain.seconds, 2),
        "faults": [
            {
                "kind": fault.kind,
                "slot": fault.slot,
                "step": fault.step,
                "detected_ms": round(fault.detected_ms, 2),
                "next_op_ms": round(fault.next_op_ms, 2),
                "evidence": fault.evidence,
            }
            for fault in faulty.faults
        ],
    }


def broken_promises(report: dict[str, Any], kills: int) -> list[str]:
    """One sentence per promise that this run did not keep."""
    broken = []
    if report["accuracy"] < ACCURACY_FLOOR:
        broken.append(f"the accuracy is {report['accuracy']:.4f}, below {ACCURACY_FLOOR}")
    if abs(report["accuracy"] - report["accuracy_uninterrupted"]) > ACCURACY_DIFFERENCE + 1e-9:
        broken.append(f"the accuracies of the two runs differ by more than {ACCURACY_DIFFERENCE}")
    if report["steps_lost"] != 0:
        broken.append(f"{report['steps_lost']} steps were skipped or repeated")
    if not report["parameters_identical"]:
        broken.append("the survivors ended with different parameters")
    if len(report["faults"]) != kills:
        broken.append(f"{len(report['faults'])} of {kills} kills were measured")
    for fault in report["faults"]:
        if not fault["next_op_ms"] < 1000:
            broken.append(f"after the kill of slot {fault['slot']} the next all-reduce took {fault['next_op_ms']} ms")
    return broken


def table(report: dict[str, Any]) -> Table:
    view = Table(title="What two killed workers cost", title_justify="left", show_edge=True)
    view.add_column("")
    view.add_column("uninterrupted", justify="right")
    view.add_column("two workers killed", justify="right")
    view.add_row(
        "accuracy on held-out images",
        f"{report['accuracy_uninterrupted']:.4f}",
        f"{report['accuracy']:.4f}",
    )
    view.add_row("steps skipped or repeated", "0", str(report["steps_lost"]))
    for fault in report["faults"]:
        what = f"slot {fault['slot']} killed in step {fault['step']}"
        view.add_row(f"{what}: noticed after", "", f"{fault['detected_ms']:.1f} ms")
        view.add_row(f"{what}: survivors' next all_reduce", "", f"{fault['next_op_ms']:.1f} ms")
    identical = "bitwise identical" if report["parameters_identical"] else "[red]different[/red]"
    view.add_row("survivors' parameters", "", identical)
    view.add_row(
        "wall time of the job",
        f"{report['seconds_uninterrupted']:.1f} s",
        f"{report['seconds']:.1f} s",
    )
    return view
