"""The bench's table and picture."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from closeranks.bench.compare import Figure, Measured, Outcome

PEER_NAMES = {"gloo": "Gloo", "openmpi": "Open MPI"}


def words(bytes_: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if bytes_ >= unit and bytes_ % unit == 0:
            return f"{bytes_ // unit} {name}"
    return f"{bytes_} B"


def duration(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    if us >= 1000:
        return f"{us / 1000:.2f} ms"
    return f"{us:.1f} us" if us >= 10 else f"{us:.2f} us"


def with_spread(figure: Figure) -> str:
    """The median, and how far from it the quartiles of the rounds are."""
    away = max(figure.high_us - figure.median_us, figure.median_us - figure.low_us)
    return f"{duration(figure.median_us)} ±{100 * away / figure.median_us:.0f}%"


def table(outcome: Outcome) -> Table:
    request = outcome.request
    peers = [peer for peer in request.peers if any(peer in measured.figures for measured in outcome.sizes)]
    title = f"{request.op}, float32, {request.processes} processes, one host, repair on; medians of rounds"
    shown = Table(title=title, title_justify="left", caption_justify="left")
    shown.caption = (
        "± how far the quartiles of the rounds are from their median; p99 of single ops; Nx: the peer's median over "
        "ours; memory limit: all processes at once reading and writing as much as the op must at least"
    )
    shown.add_column("bytes", justify="right")
    shown.add_column("memory")
    shown.add_column("closeranks", justify="right")
    shown.add_column("p99", justify="right")
    for peer in peers:
        shown.add_column(PEER_NAMES[peer], justify="right")
        shown.add_column("", justify="right")
    shown.add_column("memory limit", justify="right")
    for measured in outcome.sizes:
        for memory in request.memories:
            ours = measured.figures[memory]
            cells = [words(measured.bytes), memory, with_spread(ours), duration(ours.p99_us or math.nan)]
            for peer in peers:
                figure = measured.figures.get(peer)
                cells += [with_spread(figure), f"{figure.median_us / ours.median_us:.2f}x"] if figure else ["-", "-"]
            cells.append(duration(measured.limit_us) if measured.limit_us else "-")
            shown.add_row(*cells, end_section=memory == request.memories[-1])
    return shown


def explanation(measured: Measured) -> list[str]:
    lines = [f"{words(measured.bytes)}:"]
    lines += [f"  {memory}: {text}" for memory, text in measured.explanations.items()]
    lines += [
        f"  {PEER_NAMES[peer]}: {figure.note}"
        for peer, figure in measured.figures.items()
        if peer in PEER_NAMES and figure.note
    ]
    return lines


def print_report(outcome: Outcome, explain: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(table(outcome))
    if explain:
        for measured in outcome.sizes:
            for line in explanation(measured):
                console.print(line, soft_wrap=True)


def plot(outcome: Outcome, file: Path) -> None:
    """Time over bytes, both logarithmic: ours solid, peers dashed, the memory limit dotted."""
    import matplotlib  # noqa: PLC0415 - a second of start-up that only --plot needs

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 5))
    request = outcome.request
    sizes = [max(measured.bytes, 1) for measured in outcome.sizes]
    styles = {"shared": "-o", "private": "-s", "torch": "-^", "gloo": "--v", "openmpi": "--D"}
    for name in [*request.memories, *request.peers]:
        points = [(s, m.figures[name]) for s, m in zip(sizes, outcome.sizes, strict=True) if name in m.figures]
        if not points:
            continue
        x, y = [s for s, _ in points], [f.median_us for _, f in points]
        label = PEER_NAMES.get(name, f"closeranks, {name}")
        (line,) = axes.plot(x, y, styles[name], label=label, markersize=4)
        axes.fill_between(
            x, [f.low_us for _, f in points], [f.high_us for _, f in points], alpha=0.2, color=line.get_color()
        )
    limits = [(s, m.limit_us) for s, m in zip(sizes, outcome.sizes, strict=True) if m.limit_us]
    if limits:
        axes.plot([s for s, _ in limits], [us for _, us in limits], ":", color="gray", label="memory limit")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [words(measured.bytes) for measured in outcome.sizes], rotation=30)
    axes.set_xlabel("bytes of a process's buffer")
    axes.set_ylabel("microseconds per op (median; band: quartiles)")
    axes.set_title(f"{request.op}, float32, {request.processes} processes, one host")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)
