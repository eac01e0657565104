"""`closeranks bench OP`: ours beside its peers, alternating in one run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeranks.bench import openmpi
from closeranks.bench.measure import Contender, alternate, measure_tail
from closeranks.bench.sides import BenchError, Job, Refusal, Side, Sides

OPS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send_recv",
)
MEMORIES = ("shared", "private", "torch")
PEERS = ("gloo", "openmpi")
# Below this a process's share of the copying takes nanoseconds: memory is not what limits the op.
FEWEST_LIMIT_BYTES = 4096


@dataclass
class Request:
    """What is to be measured."""

    op: str = "all_reduce"
    processes: int = 4
    sizes: list[int] = field(default_factory=list)  # bytes of the larger of a process's buffers
    memories: tuple[str, ...] = MEMORIES
    peers: tuple[str, ...] = PEERS
    seconds: float = 6.0  # of alternating rounds for a size


@dataclass
class Figure:
    """One contender at one size."""

    median_us: float
    low_us: float  # quartiles of the rounds
    high_us: float
    p99_us: float | None = None
    note: str = ""


@dataclass
class Measured:
    """One size: contenders by name (a memory, a peer), and what memory alone would take."""

    bytes: int
    figures: dict[str, Figure] = field(default_factory=dict)
    limit_us: float | None = None
    explanations: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    request: Request
    sizes: list[Measured] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # how the peers were set up, and what is not measured


def tool() -> Path:
    """The closeranks program of this environment."""
    return Path(os.environ.get("CLOSERANKS_TOOL", str(Path(sys.executable).with_name("closeranks"))))


def worker_program() -> Path:
    program = tool().resolve().with_name("closeranks-bench-worker")
    if not program.exists():
        raise BenchError(f"{program} is missing: build it with make build")
    return program


def sources() -> Path:
    return Path(__file__).resolve().parents[3] / "tools"


def our_job(name: str, processes: int, folder: Path, command: list[str], *flags: str) -> Job:
    """A job under `closeranks run` with failure handling on, as in training."""
    launch = [str(tool()), "run", "--nproc-per-node", str(processes), "--shrink", "--max-replacements", "0"]
    whole = [*launch, "--log-dir", str(folder / f"{name}-log"), *flags, *command]
    return Job(name, processes, [whole], {"PYTHON_EXEC": sys.executable})


def gloo_job(processes: int, folder: Path) -> Job:
    command = [sys.executable, "-m", "closeranks.bench.torch_worker", "gloo"]
    environment = {"CLOSERANKS_BENCH_STORE": str(folder / "gloo-store"), "OMP_NUM_THREADS": "1"}
    return Job("gloo", processes, [command] * processes, environment)


def moved_bytes(op: str, bytes_: int, processes: int) -> int:
    """What all processes together must read and write at least, for buffers as tools/bench_shape.h has them."""
    whole, part = bytes_, -(-bytes_ // processes)
    if op == "send_recv":
        return (processes // 2) * 2 * whole
    read, written = {
        "all_reduce": (processes * whole, processes * whole),
        "reduce": (processes * whole, whole),
        "broadcast": (whole, (processes - 1) * whole),
        "all_gather": (processes * part, processes * processes * part),
        "gather": (processes * part, processes * part),
        "scatter": (processes * part, processes * part),
        "reduce_scatter": (processes * processes * part, processes * part),
        "all_to_all": (processes * processes * part, processes * processes * part),
        "barrier": (0, 0),
    }[op]
    return read + written


class Comparison:
    """Starts the sides a request needs and measures them size by size."""

    def __init__(self, request: Request, sides: Sides, say: Callable[[str], None]) -> None:
        self.request = request
        self.sides = sides
        self.say = say
        self.outcome = Outcome(request)
        self.peer: openmpi.Peer | None = None
        self.ours: Side | None = None

    def start(self) -> None:
        request, folder = self.request, self.sides.folder
        busy, cores = os.getloadavg()[0], os.cpu_count() or 1
        if busy > cores / 2:
            self.remark(f"this machine is busy (load {busy:.1f} on {cores} cores): times are longer, ratios still hold")
        self.ours = self.sides.start(our_job("ours", request.processes, folder, [str(worker_program())], "--no-python"))
        if "torch" in request.memories:
            module = ["-m", "closeranks.bench.torch_worker", "closeranks"]
            self.sides.start(our_job("torch", request.processes, folder, module))
        if "gloo" in request.peers:
            self.sides.start(gloo_job(request.processes, folder))
        mpi: list[Side] = []
        if "openmpi" in request.peers:
            missing = openmpi.missing()
            if missing is not None:
                self.remark(missing)
            else:
                program = openmpi.compile_worker(sources(), tool().resolve().parents[1] / "bench")
                mpi = [self.sides.start(job) for job in openmpi.jobs(request.processes, program)]
        self.sides.gather()
        if "gloo" in self.sides.sides:
            self.remark("Gloo: " + " ".join(self.sides.sides["gloo"].command("settings")[0]))
        if mpi:
            self.peer = openmpi.Peer(mpi)
            self.remark(
                f"{openmpi.version()}: for each size the fastest of its algorithms, with CMA and without"
                + (", yields when idle" if len(mpi) == 2 else ", yielding and spinning when idle")
            )

    def remark(self, text: str) -> None:
        self.outcome.remarks.append(text)
        self.say(text)

    def measure(self, bytes_: int) -> Measured:
        contenders = self.contenders(bytes_)
        alternate(contenders, self.request.seconds)
        measured = Measured(bytes_)
        for contender in contenders:
            if contender.name in MEMORIES:
                measure_tail(contender)
            low, high = contender.spread
            p99 = None if contender.p99 is None else 1e6 * contender.p99
            figure = Figure(1e6 * contender.median, 1e6 * low, 1e6 * high, p99, contender.note)
            if contender.name == "limit":
                measured.limit_us = figure.median_us
            else:
                measured.figures[contender.name] = figure
            if contender.name in ("shared", "private"):
                measured.explanations[contender.name] = contender.side.explain(contender.identity)
        for side in self.sides.sides.values():
            side.release()
        self.outcome.sizes.append(measured)
        return measured

    def contenders(self, bytes_: int) -> list[Contender]:
        op, sides = self.request.op, self.sides.sides
        found: list[Contender] = []
        assert self.ours is not None
        try:
            for memory in self.request.memories:
                side = sides["torch"] if memory == "torch" else self.ours
                got = side.prepare(memory, op, bytes_, memory)
                note = "" if got == memory else f"there is no {memory} memory: measured with {got}"
                if note:
                    self.remark(note)
                found.append(Contender(memory, side, memory, note))
        except Refusal as refusal:
            raise BenchError(f"closeranks cannot do {op} of {bytes_} bytes: {refusal}") from None
        if "gloo" in sides:
            self.add_peer(found, lambda: best_of_torch(sides["gloo"], op, bytes_), "gloo")
        if self.peer is not None:
            peer = self.peer
            self.add_peer(found, lambda: peer.best(op, bytes_), "openmpi")
        each = moved_bytes(op, bytes_, self.request.processes) // (2 * self.request.processes)
        if each >= FEWEST_LIMIT_BYTES:
            # In place each byte is read and written where it lies: half as much memory for the caches to hold.
            self.ours.prepare("limit", "update" if op == "all_reduce" else "copy", each, "shared")
            found.append(Contender("limit", self.ours, "limit"))
        return found

    def add_peer(self, found: list[Contender], make: Callable[[], Contender], name: str) -> None:
        try:
            found.append(make())
        except Refusal as refusal:
            self.remark(f"{name} does not do {self.request.op}: {refusal}")


def best_of_torch(side: Side, op: str, bytes_: int) -> Contender:
    """The faster of torch's calls for the op, prepared. Raises Refusal when there is none."""
    made = []
    reason = ""
    for variant in side.variants(op):
        try:
            side.prepare(f"gloo/{variant}", op, bytes_, "torch", variant)
            made.append(Contender("gloo", side, f"gloo/{variant}", f"torch's {variant} call"))
        except Refusal as refusal:
            reason = str(refusal)
    if not made:
        raise Refusal(reason)
    if len(made) > 1:
        alternate(made, seconds=0)
    best = min(made, key=lambda contender: contender.median if contender.rounds else 0)
    return Contender("gloo", side, best.identity, best.note if len(made) > 1 else "")


def compare(request: Request, say: Callable[[str], None]) -> Outcome:
    """Measures all sizes. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder, Sides(Path(folder)) as sides:
        comparison = Comparison(request, sides, say)
        comparison.start()
        for bytes_ in request.sizes:
            comparison.measure(bytes_)
        return comparison.outcome


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    """What --json writes: one row per bytes, memory and peer."""
    found = []
    for measured in outcome.sizes:
        for memory in outcome.request.memories:
            ours = measured.figures[memory]
            for peer in outcome.request.peers:
                figure = measured.figures.get(peer)
                if figure is None:
                    continue
                row = {
                    "op": outcome.request.op,
                    "processes": outcome.request.processes,
                    "hosts": 1,
                    "bytes": measured.bytes,
                    "memory": memory,
                    "median_us": ours.median_us,
                    "p99_us": ours.p99_us,
                    "low_us": ours.low_us,
                    "high_us": ours.high_us,
                    "peer": peer,
                    "peer_median_us": figure.median_us,
                    "peer_low_us": figure.low_us,
                    "peer_high_us": figure.high_us,
                    "peer_settings": figure.note,
                    "ratio": figure.median_us / ours.median_us,
                    "limit_us": measured.limit_us,
                }
                found.append({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()})
    return found
