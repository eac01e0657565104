"""`closeranks bench`: all_reduce of closeranks and of Gloo through torch.distributed, side by side in one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(text: str) -> int:
    """Bytes of '8', '64k', '1M', '16MiB'; ValueError otherwise."""
    lower = text.strip().lower().removesuffix("ib").removesuffix("b")
    digits = lower.rstrip("kmg")
    unit = lower[len(digits) :]
    if not digits.isdigit() or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: write bytes, or 64k, 1M, 16MiB")
    value = int(digits) * UNITS[unit]
    if value < 4:
        raise argparse.ArgumentTypeError(f"'{text}' is less than one float32 element (4 bytes)")
    return value


def sizes(text: str) -> list[int]:
    return [size(part) for part in text.split(",")]


def words(bytes_: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if bytes_ >= unit and bytes_ % unit == 0:
            return f"{bytes_ // unit} {name}"
    return f"{bytes_} B"


def duration(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} us"


def run(processes: int, sizes_: list[int]) -> list[dict[str, Any]]:
    """Starts the processes under `closeranks run --shrink` (repair on) and returns the measured rows."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
        out = Path(folder) / "rows.jsonl"
        tool = Path(sys.executable).with_name("closeranks")
        launch = [str(tool), "run", "--nproc-per-node", str(processes), "--shrink", "--log-dir", f"{folder}/log"]
        worker = ["-m", "closeranks.bench.worker", "--bytes", ",".join(map(str, sizes_)), "--out", str(out)]
        status = subprocess.run([*launch, *worker], check=False).returncode
        if status != 0:
            raise SystemExit(f"closeranks bench: the processes ended with status {status}; their words are above")
        return [json.loads(line) for line in out.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="closeranks bench", description=__doc__)
    parser.add_argument("op", nargs="?", default="all_reduce", choices=["all_reduce"])
    parser.add_argument("--processes", type=int, default=4, help="on this host (default 4)")
    parser.add_argument("--bytes", type=sizes, default=sizes("8,64k,1M,16M"), help="comma-separated: 8,64k,1M,16M")
    parser.add_argument("--against", default="gloo", choices=["gloo"], help="the peer to measure beside")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    arguments = parser.parse_args()
    if arguments.processes < 2:
        parser.error("--processes must be at least 2: one process has nobody to reduce with")

    rows = run(arguments.processes, arguments.bytes)
    title = f"{arguments.op} float32 through torch.distributed, {arguments.processes} processes, medians of 15 rounds"
    table = Table(title=title, title_justify="left")
    for column in ("bytes", "closeranks", "p99", "gloo", "gloo / closeranks"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            words(row["bytes"]),
            duration(row["median_us"]),
            duration(row["p99_us"]),
            duration(row["peer_median_us"]),
            f"{row['ratio']:.1f}x",
        )
    Console(highlight=False).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
