"""What a Session costs: per step without faults, for the others while a replacement joins, and until it trains.

    closeranks run --nproc-per-node 4 --shrink [--spares 0] -m closeranks.bench.session [--width 512] [--kills 3]

Slot 0 prints one JSON line, times of its own:
  own_us, own_percent      the session's own code in a step (boundary, dealing, accounting; not the loader's fetch), the
                           median over all steps, and its part of a plain step
  plain_step_ms, session_step_ms, overhead_percent, overhead_95
                           short blocks of steps alternate, the same training with torch's DistributedSampler and with
                           the session around it: medians, the median over pairs of blocks of how much longer the one
                           took, and the interval that holds that median with 95 % confidence
  replaced_ms              from each kill to the end of the first step in which the slot takes part again
  pause_ms, state_mib, rate_gib_s
                           the longest boundary meanwhile (median over the kills), in which the newcomer got so much
                           state, and their quotient
Workers kill themselves in turn, each when a spare is ready, or after 15 s: with --spares 0 there is none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import closeranks
from closeranks import _closeranks

BATCH = 32
ROWS = 400_000  # no epoch ends meanwhile
STEPS_PER_BLOCK = 5
WARM_UP_STEPS = 10
STEPS_AFTER_JOIN = 10
SPARE_PATIENCE_S = 15


class Rows(Dataset[torch.Tensor]):
    """Samples that cost nothing to read."""

    def __init__(self, length: int, width: int) -> None:
        self.length = length
        self.row = torch.randn(width)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.row


class TimedLoader(DataLoader[torch.Tensor]):
    """A DataLoader that keeps the time of its last fetches."""

    fetch_s = 0.0

    def __iter__(self) -> Any:
        batches = super().__iter__()
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.fetch_s += time.perf_counter() - start
            if batch is None:
                return
            yield batch


def median_interval(values: list[float]) -> tuple[float, float]:
    """Bounds that hold the median with 95 % confidence, by the ranks of a binomial distribution."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = math.floor(len(values) / 2 - half), math.ceil(len(values) / 2 + half)
    return ordered[max(low, 0)], ordered[min(high, len(values) - 1)]


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.slot, self.slots = dist.get_rank(), dist.get_world_size()
        layers = (nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers))
        self.model = closeranks.data_parallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        rows = Rows(ROWS, arguments.width)
        sampler = closeranks.ElasticSampler(rows)
        self.loader = TimedLoader(rows, BATCH, sampler=sampler)
        self.plain_loader = DataLoader(rows, BATCH, sampler=DistributedSampler(rows))
        self.killed = [0]  # so many, travels with the state
        self.session = closeranks.Session(self.model, self.optimizer, sampler, state={"killed": self.killed})
        self.newcomer = _closeranks.job_is_newcomer()
        self.joined: list[int] = []
        self.session.on_join(self.joined.extend)
        self.steps = iter(self.session.steps(self.loader, epochs=1_000_000))
        self.own: list[float] = []
        self.boundaries: list[float] = []

    def train(self, batch: torch.Tensor) -> None:
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def session_step(self) -> None:
        fetched = self.loader.fetch_s
        start = time.perf_counter()
        step = next(self.steps, None)
        if step is None:
            sys.exit("the bench is not finished: this worker was asked to leave")
        batch = step.__enter__()
        ready = time.perf_counter()
        self.train(batch)
        trained = time.perf_counter()
        step.__exit__(None, None, None)
        self.boundaries.append(ready - start)
        own = ready - start - (self.loader.fetch_s - fetched) + time.perf_counter() - trained
        self.own.append(own)

    def without_faults(self) -> dict[str, Any]:
        batches: Iterator[torch.Tensor] = chain.from_iterable(repeat(self.plain_loader))
        for _ in range(WARM_UP_STEPS):
            self.session_step()
            self.train(next(batches))
        self.own.clear()
        plain, inside = [], []
        for _ in range(self.arguments.blocks):
            start = time.perf_counter()
            for _ in range(STEPS_PER_BLOCK):
                self.train(next(batches))
            middle = time.perf_counter()
            for _ in range(STEPS_PER_BLOCK):
                self.session_step()
            plain.append((middle - start) / STEPS_PER_BLOCK)
            inside.append((time.perf_counter() - middle) / STEPS_PER_BLOCK)
        longer = [100 * (s / p - 1) for p, s in zip(plain, inside, strict=True)]
        own, step = statistics.median(self.own), statistics.median(plain)
        return {
            "own_us": 1e6 * own,
            "own_percent": 100 * own / step,
            "plain_step_ms": 1e3 * step,
            "session_step_ms": 1e3 * statistics.median(inside),
            "overhead_percent": statistics.median(longer),
            "overhead_95": median_interval(longer),
        }

    def kill_one(self) -> float:
        """The next victim kills itself, and ends here; the others learn when, in unix seconds."""
        victim = 1 + self.killed[0] % (self.slots - 1)
        if self.slot == victim:
            with self.session.expected_pause("it waits for a spare", 2 * SPARE_PATIENCE_S):
                await_spare(self.killed[0])
        moment = torch.tensor([time.time()], dtype=torch.float64)
        dist.broadcast(moment, src=victim)
        if self.slot == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return moment.item()

    def train_until_whole(self) -> tuple[float, float]:
        """Until the replacement has trained for a while. Returns when its first step was done, and the longest pause.

        A replacement begins here, within the step of its join: all count alike.
        """
        self.boundaries.clear()
        whole, after = 0.0, 0
        while after < STEPS_AFTER_JOIN:
            self.session_step()
            if self.joined:
                whole = whole or time.time()
                after += 1
        self.joined.clear()
        return whole, max(self.boundaries)

    def with_kills(self) -> dict[str, Any]:
        replaced, pauses = [], []
        while self.newcomer or self.killed[0] < self.arguments.kills:
            killed_at = 0.0 if self.newcomer else self.kill_one()
            whole, pause = self.train_until_whole()
            replaced.append(1e3 * (whole - killed_at))
            pauses.append(pause)
            self.newcomer = False
            self.killed[0] += 1
        state = 2 * sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        pause = statistics.median(pauses)
        return {
            "replaced_ms": replaced,
            "pause_ms": 1e3 * pause,
            "state_mib": state / 2**20,
            "rate_gib_s": state / 2**30 / pause,
        }


def await_spare(before: int) -> None:
    """Until the job's event log tells of a spare for the kill after `before` others, or for a while."""
    log = Path(os.environ.get("CLOSERANKS_OUTPUT_FILES", "/nowhere/slot")).parent / "events.jsonl"
    deadline = time.monotonic() + SPARE_PATIENCE_S
    while time.monotonic() < deadline:
        if log.exists() and log.read_text().count('"spare_started"') > before:
            return
        time.sleep(0.1)


def rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="of the square layers (default 512)")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=100, help=f"pairs of {STEPS_PER_BLOCK} steps (default 100)")
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    closeranks.init()
    bench = Bench(arguments)
    row: dict[str, Any] = {"processes": bench.slots}
    if not bench.newcomer:
        row |= bench.without_faults()
    row |= bench.with_kills()
    if bench.slot == 0:
        print(json.dumps({key: rounded(value) for key, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
