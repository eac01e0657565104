"""ElasticSampler: deals an epoch's samples to slots, so that each is used exactly once whoever dies. Pure.

docs/sampler.md has the rule in words. Everything here is a function of (seed, epoch, cursors, present slots, batch
size): all workers compute the same, and nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

from closeranks.errors import InvalidCall
from closeranks.ledger import Deal, Entry, Ledger

PADDING_SAMPLES = 2  # BatchNorm refuses a batch of one


@dataclass(frozen=True)
class Turn:
    """What one optimizer step takes: `batches` batches per present slot, `takes[slot]` samples in all of them."""

    epoch: int
    round: int
    batches: int
    takes: dict[int, int]


class ElasticSampler(Sampler[int]):
    """A DataLoader's ``sampler=`` under :class:`closeranks.Session`.

    Args:
        length_or_dataset: number of samples of an epoch, or what has a len() of it.
        shuffle: a new permutation each epoch, drawn from ``seed + epoch``; False: the dataset's own order.
        seed: the same on every worker.

    Attributes:
        ledger: which samples were used (closeranks.ledger.Ledger).
        epoch, round: where it stands.
    """

    def __init__(self, length_or_dataset: int | Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.length = length_or_dataset if isinstance(length_or_dataset, int) else len(length_or_dataset)
        if self.length < 1:
            raise InvalidCall("ElasticSampler needs at least one sample", move="fix_call")
        self.shuffle = shuffle
        self.seed = seed
        self.ledger = Ledger()
        self._slot: int | None = None
        self._slots = 0
        self._batch = 0
        self._deal: Deal | None = None
        self._cursors: dict[int, int] = {}  # samples of its queue that a slot has used in this round
        self._spent = False  # a closing round has had its one step
        self._redeal = False  # the number of slots changed on resume: this round's queues mean nothing any more
        self._order: tuple[int, torch.Tensor] | None = None
        self.epoch = 0

    # ---- called by Session ------------------------------------------------------------------------------------------

    def bind(self, slot: int, slots: int, batch: int) -> None:
        """Says whose queue iteration gives, among how many slots, in batches of how many samples."""
        if self._deal is not None and self._slots not in (0, slots):
            self._redeal = True
        self._slot, self._slots, self._batch = slot, slots, batch
        if self._deal is None:
            self._start(self.epoch)

    @property
    def slot(self) -> int | None:
        """Whose queue iteration gives; None before bind()."""
        return self._slot

    @property
    def round(self) -> int:
        return 0 if self._deal is None else self._deal.round

    @property
    def epoch_is_over(self) -> bool:
        return self._deal is not None and self.left == 0

    @property
    def left(self) -> int:
        """Samples of the epoch that nobody has used, vacant slots' included."""
        deal = self._current()
        return deal.count - sum(self._cursors.values())

    def next_epoch(self) -> None:
        self.ledger.finish_epoch(self.epoch)
        self.epoch += 1
        self._start(self.epoch)

    def begin(self, present: Collection[int], accumulate: int = 1) -> Turn:
        """Plans the next step for the `present` slots, dealing anew where the round is over.

        Repeatable: without commit() it answers the same. Not to be called when the epoch is over.
        """
        slots = tuple(sorted(present))
        if not slots or self.epoch_is_over:
            raise InvalidCall("no slot is present or the epoch is over: there is no step to plan", move="fix_call")
        batches = self._batches(slots, accumulate)
        if batches == 0:
            self._deal_anew(slots)
            batches = self._batches(slots, accumulate)
        deal = self._current()
        takes = {slot: min(batches * self._batch, self._left_of(slot)) for slot in slots}
        return Turn(deal.epoch, deal.round, batches, takes)

    def commit(self, turn: Turn, used: Collection[int], step: int, view: tuple[int, int]) -> None:
        """The step of `turn` is done: the samples of the slots in `used` are used, the others' stay in their queues."""
        deal = self._current()
        assert (turn.epoch, turn.round) == (deal.epoch, deal.round), "a turn is committed in its own round"
        self.ledger.add_deal(deal)
        for slot, count in sorted(turn.takes.items()):
            if slot in used and count > 0:
                start = self._cursors.get(slot, 0)
                self._cursors[slot] = start + count
                self.ledger.add(Entry(deal.epoch, deal.round, slot, start, start + count, step, *view))
        self._spent = deal.closing

    # ---- torch's Sampler --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[int]:
        """The rest of the own queue of this round, padded so that no batch is empty or of one sample."""
        if self._slot is None:
            raise InvalidCall(
                "an ElasticSampler is iterated by closeranks.Session: pass it as Session(sampler=...) and loop over "
                "session.steps(loader)",
                move="fix_call",
            )
        return iter(self.indices(self._slot).tolist())

    def __len__(self) -> int:
        """Samples that iteration would give now, padding included."""
        return self.length if self._slot is None else self.indices(self._slot).numel()

    def indices(self, slot: int) -> torch.Tensor:
        """Dataset indices of the rest of the slot's queue of this round, padding included."""
        order, deal = self._permutation(), self._current()
        own = order[deal.queue(slot, self._cursors.get(slot, 0))]
        if own.numel() == 0:
            count = PADDING_SAMPLES if self._batch > 1 else 1
            return order.repeat(count)[:count]
        if self._batch > 1 and own.numel() % self._batch == 1:
            return torch.cat([own, own[-1:]])  # a batch of one sample: doubled, its mean gradient is the same
        return own

    # ---- its state, for newcomers and checkpoints -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        deal = self._deal
        return {
            "length": self.length,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "epoch": self.epoch,
            "slots": self._slots,
            "round": None if deal is None else (deal.round, deal.slots, deal.positions),
            "cursors": dict(self._cursors),
            "spent": self._spent,
            "redeal": self._redeal,
            "ledger": self.ledger.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises InvalidCall when the state is of another length, seed or order."""
        for name in ("length", "shuffle", "seed"):
            if state[name] != getattr(self, name):
                raise InvalidCall(
                    f"the sampler's {name} is {getattr(self, name)} here and {state[name]} in the job's state: make it "
                    "the same on all workers and in all runs",
                    move="fix_call",
                )
        self.epoch = state["epoch"]
        self.ledger = Ledger.from_state(state["ledger"])
        if state["round"] is None:
            self._deal = None
            self._cursors = {}
            if self._slots:
                self._start(self.epoch)
            return
        number, slots, positions = state["round"]
        self._deal = Deal(self.epoch, number, tuple(slots), self.length, positions)
        self._cursors = dict(state["cursors"])
        self._spent = state["spent"]
        self._redeal = state["redeal"] or (self._slots not in (0, state["slots"]))
        if self._slots == 0:
            self._slots = state["slots"]

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def _current(self) -> Deal:
        if self._deal is None:
            raise InvalidCall("the sampler belongs to no session yet: pass it as Session(sampler=...)", move="fix_call")
        return self._deal

    def _start(self, epoch: int) -> None:
        self._set_deal(Deal(epoch, 0, tuple(range(self._slots)), self.length))

    def _set_deal(self, deal: Deal) -> None:
        self._deal, self._cursors, self._spent, self._redeal = deal, {}, False, False

    def _left_of(self, slot: int) -> int:
        return self._current().queue_length(slot) - self._cursors.get(slot, 0)

    def _batches(self, slots: Sequence[int], accumulate: int) -> int:
        """Batches of each slot that this round still has for one step, at most `accumulate`. 0: deal anew."""
        deal = self._current()
        if self._redeal:
            return 0
        if deal.closing:
            return 1 if not self._spent and deal.slots == tuple(slots) else 0
        return min(accumulate, *(-(-self._left_of(slot) // self._batch) for slot in slots))

    def _deal_anew(self, slots: tuple[int, ...]) -> None:
        """What is left anywhere, in the order of the permutation, goes to the present slots."""
        deal = self._current()
        rest = torch.cat([deal.queue(slot, self._cursors.get(slot, 0)) for slot in deal.slots])
        self._set_deal(Deal(deal.epoch, deal.round + 1, slots, self.length, rest.sort().values))

    def _permutation(self) -> torch.Tensor:
        if self._order is None or self._order[0] != self.epoch:
            if self.shuffle:
                generator = torch.Generator().manual_seed(self.seed + self.epoch)
                order = torch.randperm(self.length, generator=generator)
            else:
                order = torch.arange(self.length)
            self._order = (self.epoch, order)
        return self._order[1]
