"""The ledger of samples: which samples of an epoch are used, dealt to whom, in which step. Pure: no torch.distributed.

An epoch's samples are positions 0..length-1 of its permutation. They are dealt in rounds (docs/sampler.md): a Deal says
which positions a round has and to which slots they go, an Entry that a slot used a range of its queue of that round.
Every worker computes the same ledger of all slots from facts that all survivors share, so any one of them is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Deal:
    """The samples of one round: sample j of `positions` belongs to `slots[j % len(slots)]`, in this order.

    `positions` is an ascending int64 tensor of positions in the epoch's permutation; None: all `length` of them.
    """

    epoch: int
    round: int
    slots: tuple[int, ...]
    length: int
    positions: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return self.length if self.positions is None else self.positions.numel()

    @property
    def closing(self) -> bool:
        """Fewer samples than slots: the round is one step, in which the slots without a sample pad."""
        return self.count < len(self.slots)

    def queue_length(self, slot: int) -> int:
        if slot not in self.slots:
            return 0
        place = self.slots.index(slot)
        return len(range(place, self.count, len(self.slots)))

    def queue(self, slot: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Positions in the permutation of the slot's samples `start` to `stop` of this round."""
        stop = self.queue_length(slot) if stop is None else min(stop, self.queue_length(slot))
        if start >= stop:
            return torch.empty(0, dtype=torch.int64)
        dealt = torch.arange(start, stop) * len(self.slots) + self.slots.index(slot)
        return dealt if self.positions is None else self.positions[dealt]

    def same_as(self, other: Deal) -> bool:
        if (self.slots, self.length, self.count) != (other.slots, other.length, other.count):
            return False
        if self.positions is None or other.positions is None:
            return self.count == self.length  # `positions` is ascending, so all of them is 0..length-1
        return torch.equal(self.positions, other.positions)


@dataclass(frozen=True)
class Entry:
    """`slot` has used the samples start..stop-1 of its queue in `round` of `epoch`.

    Steps that follow each other are one entry: `step` is the last of them, (term, n) the view it was committed in.
    """

    epoch: int
    round: int
    slot: int
    start: int
    stop: int
    step: int
    term: int
    n: int

    @property
    def stamp(self) -> tuple[int, int, int]:
        return (self.term, self.n, self.step)


@dataclass(frozen=True)
class Account:
    """What became of an epoch's samples. `lost`: never used, `repeated`: used more than once (counts)."""

    samples: int
    used: int
    lost: int
    repeated: int

    @property
    def exact(self) -> bool:
        """Each sample exactly once."""
        return self.lost == 0 and self.repeated == 0


@dataclass
class Ledger:
    """Entries of one history, with the deals they refer to."""

    deals: dict[tuple[int, int], Deal] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    _entries: list[Entry] = field(default_factory=list)
    _last: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def add_deal(self, deal: Deal) -> None:
        self.deals[(deal.epoch, deal.round)] = deal

    def add(self, entry: Entry) -> None:
        """Records use. An entry that continues the slot's last one of the round extends it."""
        key = (entry.epoch, entry.round, entry.slot)
        last = self._last.get(key)
        if last is not None and self._entries[last].stop == entry.start:
            self._entries[last] = replace(entry, start=self._entries[last].start)
            return
        self._last[key] = len(self._entries)
        self._entries.append(entry)

    def finish_epoch(self, epoch: int) -> None:
        """Nothing is left of `epoch`: from here on a sample without an entry is a lost one."""
        self.finished.add(epoch)

    @property
    def entries(self) -> list[Entry]:
        """All entries, in the order of their places; equal on all survivors but for (term, n)."""
        return sorted(self._entries, key=lambda e: (e.epoch, e.round, e.slot, e.start))

    @property
    def stamp(self) -> tuple[int, int, int]:
        """(term, n, step) of the latest entry."""
        return max((entry.stamp for entry in self._entries), default=(0, 0, 0))

    def uses(self, epoch: int) -> torch.Tensor:
        """How often each position of the epoch's permutation was used, int32 of the epoch's length."""
        length = next((deal.length for deal in self.deals.values() if deal.epoch == epoch), 0)
        counts = torch.zeros(length, dtype=torch.int32)
        for entry in self._entries:
            if entry.epoch == epoch:
                queue = self.deals[(epoch, entry.round)].queue(entry.slot, entry.start, entry.stop)
                counts[queue] += 1
        return counts

    def merged(self) -> dict[int, Account]:
        """All entries held against the full set of samples, per epoch that has begun, the last one included."""
        accounts = {}
        for epoch in sorted({deal.epoch for deal in self.deals.values()}):
            counts = self.uses(epoch)
            used, repeated = int((counts > 0).sum()), int((counts > 1).sum())
            accounts[epoch] = Account(counts.numel(), used, counts.numel() - used, repeated)
        return accounts

    @property
    def samples_lost(self) -> int:
        """Samples of finished epochs that nobody used."""
        return sum(account.lost for epoch, account in self.merged().items() if epoch in self.finished)

    @property
    def samples_repeated(self) -> int:
        """Samples that were used more than once in an epoch, the running one included."""
        return sum(account.repeated for account in self.merged().values())

    def state_dict(self) -> dict[str, Any]:
        def numbers(entry: Entry) -> tuple[int, ...]:
            return (
                entry.epoch,
                entry.round,
                entry.slot,
                entry.start,
                entry.stop,
                entry.step,
                entry.term,
                entry.n,
            )

        return {
            "entries": [numbers(entry) for entry in self._entries],
            "deals": [
                (deal.epoch, deal.round, deal.slots, deal.length, deal.positions) for deal in self.deals.values()
            ],
            "finished": sorted(self.finished),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ledger:
        ledger = cls()
        for epoch, number, slots, length, positions in state["deals"]:
            ledger.add_deal(Deal(epoch, number, tuple(slots), length, positions))
        for numbers in state["entries"]:
            ledger.add(Entry(*numbers))
        ledger.finished = set(state["finished"])
        return ledger


def merge(ledgers: Iterable[Ledger]) -> Ledger:
    """One ledger of several workers' (or files').

    The one with the highest (term, n, step) is right; the others add what it does not cover, and only where they were
    dealt the same samples: a worker that was excluded and wrote late loses (protocol rule 26).
    """
    ranked = sorted(ledgers, key=lambda ledger: ledger.stamp, reverse=True)
    result = Ledger()
    for ledger in ranked:
        known = {epoch for epoch, _ in result.deals}
        agreeing = set()
        for key, deal in ledger.deals.items():
            if key in result.deals:
                if deal.same_as(result.deals[key]):
                    agreeing.add(key)
            elif key[0] not in known:
                result.add_deal(deal)
                agreeing.add(key)
        for entry in ledger.entries:
            if (entry.epoch, entry.round) in agreeing:
                for start, stop in _uncovered(entry, result._entries if ledger is not ranked[0] else []):
                    result._entries.append(replace(entry, start=start, stop=stop))
        result.finished |= {epoch for epoch in ledger.finished if epoch not in known}
    return result


def _uncovered(entry: Entry, others: list[Entry]) -> list[tuple[int, int]]:
    """The ranges of `entry` that no entry of the same slot and round in `others` covers."""
    ranges = [(entry.start, entry.stop)]
    for other in others:
        if (other.epoch, other.round, other.slot) != (entry.epoch, entry.round, entry.slot):
            continue
        cut = []
        for start, stop in ranges:
            cut += [(start, min(stop, other.start)), (max(start, other.stop), stop)]
        ranges = [(start, stop) for start, stop in cut if start < stop]
    return ranges
