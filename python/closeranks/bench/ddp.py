"""`closeranks bench ddp`: a DDP step of a 10-million-parameter network over closeranks, beside the same over Gloo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closeranks.bench.compare import gloo_job, our_job
from closeranks.bench.ddp_step import PARAMETERS
from closeranks.bench.measure import Contender, alternate, measure_tail
from closeranks.bench.report import duration
from closeranks.bench.sides import Sides

BATCH = 32
SECONDS = 30.0
# Steps of tens of milliseconds: more rounds of few steps see more of a machine's moods.
ROUNDS = 25


def measure(processes: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row, as --json writes it; prints what it means. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder, Sides(Path(folder)) as sides:
        module = ["-m", "closeranks.bench.torch_worker", "closeranks"]
        ours = sides.start(our_job("torch", processes, Path(folder), module))
        gloo = sides.start(gloo_job(processes, Path(folder)))
        sides.gather()
        say("Gloo: " + " ".join(gloo.command("settings")[0]))
        contenders = [Contender("ours", ours, "ddp"), Contender("gloo", gloo, "ddp"), Contender("alone", ours, "alone")]
        for contender in contenders:
            variant = "alone" if contender.name == "alone" else "default"
            contender.side.prepare(contender.identity, "ddp", BATCH, "torch", variant)
        alternate(contenders, SECONDS, ROUNDS)
        measure_tail(contenders[0])
        mine, peer, alone = (contender.median for contender in contenders)
        say(
            f"DDP step of {PARAMETERS:,} float32 parameters, {processes} workers, {BATCH} samples each: "
            f"closeranks {duration(1e6 * mine)}, Gloo {duration(1e6 * peer)}, without communication "
            f"{duration(1e6 * alone)}: {mine / peer:.2f} of Gloo's step"
        )
        low, high = contenders[0].spread
        peer_low, peer_high = contenders[1].spread
        assert contenders[0].p99 is not None
        row = {
            "op": "ddp_step",
            "processes": processes,
            "hosts": 1,
            "bytes": 4 * PARAMETERS,
            "memory": "torch",
            "median_us": 1e6 * mine,
            "p99_us": 1e6 * contenders[0].p99,
            "low_us": 1e6 * low,
            "high_us": 1e6 * high,
            "peer": "gloo",
            "peer_median_us": 1e6 * peer,
            "peer_low_us": 1e6 * peer_low,
            "peer_high_us": 1e6 * peer_high,
            "ratio": peer / mine,
            "alone_us": 1e6 * alone,
        }
        return [{key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}]
