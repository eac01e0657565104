"""What the shared arena costs a script that is not communicating: the same work on torch's own allocator and on ours.

    python -m closeranks.bench.arenas [--seconds 20]

Two processes, each a world of its own, with CLOSERANKS_SHARED_ARENAS=0 and =1, run the same work in turns; one line per
kind of work: medians of both, the ratio (ours over torch's), and the spread of the ratio between turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

MIB = 1 << 20
TURN_SECONDS = 0.5


def training(width: int, batch: int) -> Callable[[], None]:
    """Steps of a network whose activations are large: they come and go in every step."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(batch, width)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fill(size: int) -> Callable[[], None]:
    """A block is allocated, written once, and freed."""

    def step() -> None:
        torch.empty(size, dtype=torch.uint8).fill_(1)

    return step


def fork() -> None:
    """A child that ends at once; its parent has 256 MiB in use."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def works() -> dict[str, Callable[[], None]]:
    return {
        "training, 17 M parameters, activations of 2 MiB": training(2048, 256),
        "training, 1 M parameters, activations of 16 MiB": training(512, 8192),
        "fill 1 MiB": fill(MIB),
        "fill 8 MiB": fill(8 * MIB),
        "fill 64 MiB": fill(64 * MIB),
        "fork": fork,
    }


def serve() -> None:
    """Answers each line "NAME RUNS" with the seconds per run."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
        dist.init_process_group("closeranks", init_method=f"file://{folder}/store", rank=0, world_size=1)
        kept = torch.ones(64 * MIB)
        known = works()
        for line in sys.stdin:
            name, runs = line.strip().rsplit(" ", 1)
            step = known[name]
            start = time.perf_counter()
            for _ in range(int(runs)):
                step()
            print((time.perf_counter() - start) / int(runs), flush=True)
        del kept
        dist.destroy_process_group()


class Server:
    def __init__(self, shared: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "closeranks.bench.arenas", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CLOSERANKS_SHARED_ARENAS": "1" if shared else "0"},
        )

    def seconds(self, name: str, runs: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, runs, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kind of work (default 20)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    servers = [Server(shared=False), Server(shared=True)]
    try:
        for name in works():
            first = max(server.seconds(name, 3) for server in servers)
            runs = max(1, int(TURN_SECONDS / first))
            times: list[list[float]] = [[], []]
            deadline = time.monotonic() + arguments.seconds
            while time.monotonic() < deadline or len(times[0]) < 3:
                for server, seconds in zip(servers, times, strict=True):
                    seconds.append(server.seconds(name, runs))
            theirs, ours = (1e3 * statistics.median(seconds) for seconds in times)
            ratios = sorted(mine / other for other, mine in zip(*times, strict=True))
            low, high = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
            print(
                f"{name}: torch's allocator {theirs:.3f} ms, arena {ours:.3f} ms, "
                f"ratio {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})",
                flush=True,
            )
    finally:
        for server in servers:
            server.end()


if __name__ == "__main__":
    main()
