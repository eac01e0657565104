"""Measures one op at one size on several sides in turn: what the rounds were, and what follows from them.

A round is as many runs as fill ROUND_S; its figure is the time per op on the slowest process. Rounds of all contenders
alternate, and each pass begins with another one, so that whatever else the machine does hits all alike. Medians are
over the rounds; the p99 is over single ops, each on its own clock, on the process where it is largest.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from closeranks.bench.sides import Side

ROUND_S = 0.05
MOST_RUNS = 20000
MOST_ROUNDS = 15
FEWEST_ROUNDS = 5
# Single ops: a hundredth of them must be some.
MOST_SINGLES = 1000
FEWEST_SINGLES = 20
SINGLES_S = 1.0


@dataclass
class Contender:
    """One way to do the op, prepared on its side under `identity`."""

    name: str
    side: Side
    identity: str
    note: str = ""  # what it says of itself: memory, algorithm
    rounds: list[float] = field(default_factory=list)  # seconds per op
    p99: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the rounds."""
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high


def estimate(contender: Contender) -> float:
    """Seconds per op, roughly."""
    first = contender.side.round(contender.identity, 1)
    return contender.side.round(contender.identity, max(1, min(200, int(0.005 / max(first, 1e-7)))))


def runs_for(once: float) -> int:
    return max(1, min(MOST_RUNS, int(ROUND_S / max(once, 1e-8))))


def alternate(contenders: list[Contender], seconds: float, most: int = MOST_ROUNDS) -> None:
    """Appends rounds to each contender for about `seconds` in all, at least FEWEST_ROUNDS and at most `most`."""
    runs = {contender.name: runs_for(estimate(contender)) for contender in contenders}
    until = time.monotonic() + seconds
    done = 0
    while done < most and (done < FEWEST_ROUNDS or time.monotonic() < until):
        first = done % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            contender.rounds.append(contender.side.round(contender.identity, runs[contender.name]))
        done += 1


def percentile(sorted_values: list[float], part: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))]


def measure_tail(contender: Contender) -> None:
    """Fills in p99; after the rounds, which tell how many single ops there is time for."""
    runs = max(FEWEST_SINGLES, min(MOST_SINGLES, int(SINGLES_S / max(contender.median, 1e-7))))
    singles = contender.side.singles(contender.identity, runs)
    contender.p99 = max(percentile(sorted(own), 0.99) for own in singles)
