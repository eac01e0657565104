"""What the faults cost: measured from the events and from what the workers wrote, nothing assumed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from .runs import KILL, Fault, Run

ACCURACY_FLOOR = 0.95
ACCURACY_DIFFERENCE = 0.01
NEXT_OP_WITHIN_MS = 1000  # of a kill


def enders(run: Run) -> list[int]:
    """Slots whose worker reached the end of the script."""
    return [slot for slot, log in run.logs.items() if any("parameters" in record for record in log)]


def closing_record(run: Run, slot: int) -> dict[str, Any]:
    return next(record for record in run.logs[slot] if "parameters" in record)


def steps_lost(run: Run) -> int:
    """Steps of the job that nobody did, or that one slot did twice."""
    skipped = set(range(1, max(closing_record(run, slot)["steps"] for slot in enders(run)) + 1))
    repeated = 0
    for log in run.logs.values():
        done = Counter(record["step"] for record in log if "step" in record)
        skipped -= done.keys()
        repeated += sum(times - 1 for times in done.values())
    return len(skipped) + repeated


def _first(run: Run, name: str, fault: Fault) -> float:
    """Milliseconds from the fault to the first event `name` of its slot; infinite when there is none."""
    times = [e["time"] for e in run.events if e["event"] == name and e.get("slot") == fault.slot]
    return min((1000 * (time - fault.at) for time in times if time >= fault.at), default=float("inf"))


def measure(run: Run, fault: Fault) -> None:
    """Fills the times of `fault` from the run."""
    fault.detected_ms = _first(run, "worker_suspected", fault)
    fault.excluded_ms = _first(run, "worker_excluded", fault)
    fault.replaced_ms = _first(run, "first_step", fault)
    slowest = 0.0
    for slot, log in run.logs.items():
        if slot == fault.slot:
            continue
        finished = [
            record["time"]
            for record in log
            if record.get("kind") == "all_reduce"
            and record["time"] >= fault.at
            and (record["op"] >= fault.sequence if fault.kind == KILL else fault.slot not in record["contributors"])
        ]
        slowest = max(slowest, min(finished) - fault.at if finished else float("inf"))
    fault.next_op_ms = 1000 * slowest
    ended = [
        record["step"] for log in run.logs.values() for record in log if "step" in record and record["time"] < fault.at
    ]
    fault.step = max(ended, default=0) + 1


def build(plain: Run, faulty: Run, workers: int) -> dict[str, Any]:
    """The report's content (report.json)."""
    for fault in faulty.faults:
        measure(faulty, fault)
    ended = enders(faulty)
    fingerprints = {closing_record(faulty, slot)["parameters"] for slot in ended}
    closing = [closing_record(faulty, slot) for slot in ended]
    return {
        "workers": workers,
        "steps": max(record["steps"] for record in closing),
        "accuracy": min(record["accuracy"] for record in closing),
        "accuracy_uninterrupted": min(closing_record(plain, slot)["accuracy"] for slot in enders(plain)),
        "steps_lost": steps_lost(faulty),
        "samples_lost": max(record["samples_lost"] for record in closing),
        "samples_repeated": max(record["samples_repeated"] for record in closing),
        "parameters_identical": len(fingerprints) == 1,
        "survivors": ended,
        "seconds": round(faulty.seconds, 2),
        "seconds_uninterrupted": round(plain.seconds, 2),
        "faults": [
            {
                "kind": fault.kind,
                "slot": fault.slot,
                "step": fault.step,
                "detected_ms": round(fault.detected_ms, 2),
                "excluded_ms": round(fault.excluded_ms, 2),
                "next_op_ms": round(fault.next_op_ms, 2),
                "replaced_ms": round(fault.replaced_ms, 2),
                "evidence": fault.evidence,
            }
            for fault in faulty.faults
        ],
    }


def broken_promises(report: dict[str, Any], faults: int) -> list[str]:
    """One sentence per promise that this run did not keep."""
    broken = []
    if report["accuracy"] < ACCURACY_FLOOR:
        broken.append(f"the accuracy is {report['accuracy']:.4f}, below {ACCURACY_FLOOR}")
    if abs(report["accuracy"] - report["accuracy_uninterrupted"]) > ACCURACY_DIFFERENCE + 1e-9:
        broken.append(f"the accuracies of the two runs differ by more than {ACCURACY_DIFFERENCE}")
    if report["steps_lost"] != 0:
        broken.append(f"{report['steps_lost']} steps were skipped or repeated")
    for what in ("lost", "repeated"):
        if report[f"samples_{what}"] != 0:
            broken.append(f"{report[f'samples_{what}']} samples were {what}")
    if not report["parameters_identical"]:
        broken.append("the workers ended with different parameters")
    if len(report["survivors"]) != report["workers"]:
        broken.append(f"only slots {report['survivors']} had a worker at the end")
    if len(report["faults"]) != faults:
        broken.append(f"{len(report['faults'])} of {faults} faults were measured")
    for fault in report["faults"]:
        if fault["kind"] == KILL and not fault["next_op_ms"] < NEXT_OP_WITHIN_MS:
            broken.append(f"after the kill of slot {fault['slot']} the next all-reduce took {fault['next_op_ms']} ms")
        if not fault["replaced_ms"] < float("inf"):
            broken.append(f"the worker of slot {fault['slot']} was not replaced")
    return broken


def _duration(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


def table(report: dict[str, Any]) -> Table:
    view = Table(title="What four lost workers cost", title_justify="left", show_edge=True)
    view.add_column("")
    view.add_column("uninterrupted", justify="right")
    view.add_column("four workers lost", justify="right")
    view.add_row(
        "accuracy on held-out images",
        f"{report['accuracy_uninterrupted']:.4f}",
        f"{report['accuracy']:.4f}",
    )
    view.add_row("steps skipped or repeated", "0", str(report["steps_lost"]))
    view.add_row("samples lost", "0", str(report["samples_lost"]))
    view.add_row("samples repeated", "0", str(report["samples_repeated"]))
    words = {"kill": "killed", "stop": "stopped", "loop": "endless loop"}
    for fault in report["faults"]:
        view.add_section()
        view.add_row(
            f"slot {fault['slot']} {words[fault['kind']]} in step {fault['step']}: noticed after",
            "",
            _duration(fault["detected_ms"]),
        )
        view.add_row("  survivors' next all_reduce", "", _duration(fault["next_op_ms"]))
        view.add_row("  its replacement's first step", "", _duration(fault["replaced_ms"]))
        view.add_row("  of that, from the exclusion", "", _duration(fault["replaced_ms"] - fault["excluded_ms"]))
    view.add_section()
    identical = "bitwise identical" if report["parameters_identical"] else "[red]different[/red]"
    view.add_row("all workers' parameters", "", identical)
    view.add_row(
        "wall time, slowed down for spares included",
        f"{report['seconds_uninterrupted']:.1f} s",
        f"{report['seconds']:.1f} s",
    )
    return view
