"""What a Session costs: per step without faults, and for the others while a replacement joins.

    closeranks run --nproc-per-node 4 --shrink -m closeranks.bench.session [--width 512] [--layers 8] [--blocks 20]

Slot 0 prints one JSON line. `plain_step_ms`, `session_step_ms`: medians of blocks of steps that alternate, the same
training with and without the session around it; `overhead_percent` is the median over the pairs of blocks. Then slot 1
kills itself: `pause_ms` is how long the survivors' longest boundary took, in which the newcomer got `state_mib` of
parameters and optimizer state; `rate_gib_s` is their quotient.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

import closeranks
from closeranks import _closeranks

STEPS_PER_BLOCK = 10


def batches(width: int) -> Iterator[torch.Tensor]:
    batch = torch.randn(32, width)
    while True:
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="of the square layers (default 512)")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=20, help="of 10 steps each (default 20)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    closeranks.init()
    slot = dist.get_rank()
    model = closeranks.data_parallel(
        nn.Sequential(*(nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    session = closeranks.Session(model, optimizer, state={"blocks": [0]})
    newcomer = _closeranks.job_is_newcomer()
    steps = iter(session.steps(batches(arguments.width)))
    boundaries: list[float] = []

    def train(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def session_step() -> None:
        start = time.perf_counter()
        step = next(steps)
        boundaries.append(time.perf_counter() - start)
        with step as batch:
            train(batch)

    figures: dict[str, list[float]] = {"plain": [], "session": []}
    if not newcomer:
        batch = next(batches(arguments.width))
        session_step()
        for _ in range(arguments.blocks):
            for name, figure in figures.items():
                start = time.perf_counter()
                for _ in range(STEPS_PER_BLOCK):
                    train(batch) if name == "plain" else session_step()
                figure.append((time.perf_counter() - start) / STEPS_PER_BLOCK)
        if slot == 1:
            time.sleep(6)  # the spare is ready then, whose import would be measured otherwise
            os.kill(os.getpid(), signal.SIGKILL)
    boundaries.clear()
    joined: list[int] = []
    session.on_join(joined.extend)
    deadline = time.monotonic() + 60
    after = 0
    while after < 20 and not (newcomer and time.monotonic() > deadline):
        session_step()
        # Counted on all alike: from the step of the join on, which the newcomer begins with.
        after += bool(joined) or newcomer
    if slot == 0:
        state = 2 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        pause = max(boundaries)
        plain, inside = statistics.median(figures["plain"]), statistics.median(figures["session"])
        pairs = [s / p for p, s in zip(figures["plain"], figures["session"], strict=True)]
        row = {
            "processes": dist.get_world_size(),
            "plain_step_ms": 1e3 * plain,
            "session_step_ms": 1e3 * inside,
            "overhead_percent": 100 * (statistics.median(pairs) - 1),
            "state_mib": state / 2**20,
            "pause_ms": 1e3 * pause,
            "rate_gib_s": state / 2**30 / pause,
        }
        print(json.dumps({key: round(value, 3) for key, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
