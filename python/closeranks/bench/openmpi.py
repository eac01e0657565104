"""Open MPI as a peer at its best: how its job is started, and which of its algorithms is kept for an op and size.

Its process (tools/bench_mpi.cc) is compiled here, with the mpicxx that belongs to mpirun. Settings that a process has
from its start are tried as separate jobs: vader's single copy (CMA) on and off and, where every process has a core,
yielding when idle on and off. Algorithms are tried in each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from closeranks.bench.measure import Contender, alternate, estimate
from closeranks.bench.sides import BenchError, Job, Refusal, Side

# One run of a variant that is this much slower than the best so far ends its trial.
HOPELESS = 4.0
# Variants that get a second, longer trial.
FINALISTS = 3
TRIAL_S = 0.02
# Larger sizes take their finalists from this one.
TRIAL_BYTES = 16 << 20
SOURCES = ("bench_mpi.cc", "bench_loop.cc", "bench_shape.cc")
HEADERS = ("bench_loop.h", "bench_shape.h")


def missing() -> str | None:
    """None, or why Open MPI cannot be measured."""
    if shutil.which("mpirun") is None:
        return "Open MPI is not measured: there is no mpirun (make bench installs openmpi-bin and libopenmpi-dev)"
    if shutil.which("mpicxx") is None:
        return "Open MPI is not measured: mpirun is there, mpicxx is not (install libopenmpi-dev)"
    return None


def version() -> str:
    lines = subprocess.run(["mpirun", "--version"], check=False, capture_output=True, text=True).stdout.splitlines()
    return lines[0].replace("mpirun (", "").replace(")", "") if lines else "Open MPI"


def compile_worker(sources: Path, build: Path) -> Path:
    """The program, compiled anew when a source is newer. Raises BenchError."""
    program = build / "closeranks-bench-mpi"
    files = [sources / name for name in SOURCES]
    if not all(file.exists() for file in files):
        raise BenchError(f"Open MPI's part of the bench is compiled from source, and there is none at {sources}")
    newest = max(file.stat().st_mtime for file in [*files, *(sources / name for name in HEADERS)])
    if program.exists() and program.stat().st_mtime > newest:
        return program
    build.mkdir(parents=True, exist_ok=True)
    fresh = build / f"closeranks-bench-mpi.{os.getpid()}"
    command = ["mpicxx", "-std=c++20", "-O2", "-DOMPI_SKIP_MPICXX", *map(str, files), "-o", str(fresh)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise BenchError(f"mpicxx does not compile {sources}/bench_mpi.cc:\n{result.stderr[-2000:]}")
    fresh.rename(program)
    return program


def jobs(processes: int, program: Path) -> list[Job]:
    oversubscribed = processes > (os.cpu_count() or 1)
    made = []
    for single_copy in ("cma", "none"):
        for idle in ("yield",) if oversubscribed else ("yield", "spin"):
            settings = {
                "btl": "self,vader",
                "btl_vader_single_copy_mechanism": single_copy,
                "mpi_yield_when_idle": "1" if idle == "yield" else "0",
                "coll_tuned_use_dynamic_rules": "1",
                "rmaps_base_oversubscribe": "1",
                "hwloc_base_binding_policy": "none",
            }
            environment = {f"OMPI_MCA_{name}": value for name, value in settings.items()}
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            command = ["mpirun", "-np", str(processes), str(program)]
            made.append(Job(f"openmpi-{single_copy}-{idle}", processes, [command], environment))
    return made


def describe(name: str, variant: str) -> str:
    _, single_copy, idle = name.split("-")
    copies = "single copy by CMA" if single_copy == "cma" else "copies through shared memory"
    if variant == "default":
        algorithm = "its own choice of algorithm"
    elif variant == "sm":
        algorithm = "component sm"
    else:
        algorithm = f"algorithm {variant.partition(':')[2]}"
    return f"{algorithm}, {copies}, {'yields' if idle == 'yield' else 'spins'} when idle"


class Peer:
    """Finds the best way for each op and size, over all its jobs."""

    def __init__(self, sides: list[Side]) -> None:
        self.sides = sides
        self.tried: dict[tuple[str, int], list[tuple[Side, str]]] = {}

    def best(self, op: str, bytes_: int) -> Contender:
        """The fastest way, prepared. Raises Refusal when there is none."""
        finalists = []
        for side, variant in self.finalists(op, min(bytes_, TRIAL_BYTES)):
            identity = f"{side.name}/{variant}"
            side.prepare(identity, op, bytes_, "private", variant)
            finalists.append(Contender(identity, side, identity, describe(side.name, variant)))
        if len(finalists) > 1:
            alternate(finalists, seconds=0, most=5)
        chosen = min(finalists, key=lambda contender: contender.median if contender.rounds else 0)
        return Contender("openmpi", chosen.side, chosen.identity, chosen.note)

    def finalists(self, op: str, bytes_: int) -> list[tuple[Side, str]]:
        if (op, bytes_) not in self.tried:
            self.tried[op, bytes_] = self.trial(op, bytes_)
        return self.tried[op, bytes_]

    def trial(self, op: str, bytes_: int) -> list[tuple[Side, str]]:
        figures: list[tuple[float, Side, str]] = []
        reason = "it offers no way"
        for side in self.sides:
            for variant in side.variants(op):
                identity = f"{side.name}/{variant}"
                try:
                    side.prepare(identity, op, bytes_, "private", variant)
                except Refusal as refusal:
                    reason = str(refusal)
                    continue
                best = min((figure for figure, *_ in figures), default=float("inf"))
                contender = Contender(identity, side, identity)
                figure = estimate(contender)
                until = time.monotonic() + TRIAL_S
                while time.monotonic() < until and figure < HOPELESS * best:
                    figure = min(figure, estimate(contender))
                figures.append((figure, side, variant))
            side.release()
        if not figures:
            raise Refusal(reason)
        return [(side, variant) for _, side, variant in sorted(figures, key=lambda f: f[0])[:FINALISTS]]
