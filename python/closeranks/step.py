"""One training step, the unit that is repeated, and where its batches come from."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from closeranks import random_state, recording
from closeranks.errors import InvalidCall
from closeranks.sampler import ElasticSampler, Turn


class Outcome(enum.Enum):
    """How far a step is."""

    offered = enum.auto()  # handed to the caller's loop
    running = enum.auto()  # inside its with block
    done = enum.auto()
    repeat = enum.auto()  # its block ended with an error that asks for a repetition
    failed = enum.auto()  # its block ended with any other error


class Step:
    """What session.steps() yields: ``with step as batch:`` runs one optimizer step.

    Attributes:
        number: of the step, 1 for the job's first.
        batch: what the loader gave; with ``accumulate`` a list of batches.
        repetition: how often the step has been begun before, on the same batch.
    """

    def __init__(
        self,
        number: int,
        batch: Any,
        turn: Turn | None,
        finish: Callable[[Step], None],
        take_in: Callable[[Step, BaseException], bool],
    ) -> None:
        self.number = number
        self.batch = batch
        self.turn = turn
        self.repetition = 0
        self.outcome = Outcome.offered
        self.optimizer_steps = 0
        self.before: StepStart | None = None
        self._finish = finish
        self._take_in = take_in

    def __enter__(self) -> Any:
        if self.outcome is not Outcome.offered:
            raise InvalidCall(
                f"step {self.number} was entered twice: one `with step as batch:` per turn of the loop", move="fix_call"
            )
        self.outcome = Outcome.running
        return self.batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.outcome = Outcome.failed  # unless finishing it succeeds
            self._finish(self)
            self.outcome = Outcome.done
            return False
        if self._take_in(self, error):
            self.outcome = Outcome.repeat
            return True
        self.outcome = Outcome.failed
        return False

    def require_done(self) -> None:
        """Raises InvalidCall when the loop has gone on without having entered the step's block."""
        if self.outcome is not Outcome.done:
            raise InvalidCall(
                f"step {self.number} has not been done: the loop's body is `with step as batch:`", move="fix_call"
            )

    def offer_again(self) -> None:
        self.repetition += 1
        self.outcome = Outcome.offered


@dataclass(frozen=True)
class StepStart:
    """What a step changes before its gradients are there, kept so that it can be repeated (policy exact)."""

    buffers: list[tuple[torch.Tensor, torch.Tensor]]
    random: dict[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> StepStart:
        return cls([(buffer, buffer.detach().clone()) for buffer in module.buffers()], random_state.capture())

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
        random_state.restore(self.random)


class Batches:
    """The batches of one call of session.steps(), in order.

    With an ElasticSampler a loader's iterator lives for one round; what it has prefetched beyond that is dropped.
    """

    def __init__(self, loader: Iterable[Any], sampler: ElasticSampler | None, accumulate: int) -> None:
        if accumulate < 1:
            raise InvalidCall(f"accumulate is {accumulate}; it is the number of batches per step", move="fix_call")
        self.loader = loader
        self.sampler = sampler
        self.accumulate = accumulate
        self._iterator: Iterator[Any] | None = None
        self._round: tuple[int, int] | None = None
        self._ahead: list[Any] = []

    def of_turn(self, turn: Turn) -> list[Any]:
        """The batches of `turn`: as many on every slot."""
        if self._iterator is None or self._round != (turn.epoch, turn.round):
            self._iterator = None  # ends the old one's worker processes before new ones start
            with random_state.seeded_aside(self._place):
                self._iterator = iter(self.loader)
            self._round = (turn.epoch, turn.round)
        batches = list(islice(self._iterator, turn.batches))
        if len(batches) < turn.batches:
            raise InvalidCall(
                f"the loader ended after {len(batches)} of {turn.batches} batches in round {turn.round} of epoch "
                f"{turn.epoch}: its batch size must not change while it runs",
                move="fix_call",
            )
        return batches

    @property
    def _place(self) -> str:
        """Names this slot's place in the job's data."""
        assert self.sampler is not None
        return f"{self.sampler.slot} {self.sampler.epoch} {self.sampler.round} {self.sampler.left}"

    def skip(self, count: int) -> None:
        """Passes over `count` batches of a loader of the user's own: the job is that far in its epoch."""
        self._iterator = iter(self.loader)
        for _ in islice(self._iterator, count):
            pass

    def epoch_has_more(self) -> bool:
        """For a loader of the user's own: whether another step can begin in this epoch."""
        if self._iterator is None:
            self._iterator = iter(self.loader)
        if not self._ahead:
            # A DataLoader's batches are recorded by itself.
            is_recorded = isinstance(self.loader, DataLoader)
            if not is_recorded:
                recording.loading(recording.LOADER_ASKED)
            self._ahead = list(islice(self._iterator, self.accumulate))
            if not is_recorded:
                recording.loading(recording.LOADER_GAVE)
        if not self._ahead:
            self._iterator = None
        return bool(self._ahead)

    def next(self) -> list[Any]:
        """The batches that epoch_has_more() found."""
        batches, self._ahead = self._ahead, []
        return batches


def batch_size_of(loader: Iterable[Any], sampler: ElasticSampler) -> int:
    """Samples per batch of a loader that draws from `sampler`. Raises InvalidCall if it does not."""
    if not isinstance(loader, DataLoader):
        raise InvalidCall(
            f"with an ElasticSampler session.steps() takes a torch DataLoader, not {type(loader).__name__}",
            move="fix_call",
        )
    grouping = loader.batch_sampler
    drawn_from = loader.sampler if grouping is None else getattr(grouping, "sampler", loader.sampler)
    if drawn_from is not sampler:
        raise InvalidCall(
            "the loader draws from another sampler than the session's: give DataLoader(sampler=...) and "
            "Session(sampler=...) the same ElasticSampler",
            move="fix_call",
        )
    if loader.drop_last or getattr(grouping, "drop_last", False):
        raise InvalidCall(
            "the loader has drop_last=True, which would lose samples: leave it out, the sampler sees to it that no "
            "batch is too small",
            move="fix_call",
        )
    if grouping is None:
        return 1
    size = getattr(grouping, "batch_size", None)
    if not isinstance(size, int):
        raise InvalidCall(
            f"the loader's batch sampler ({type(grouping).__name__}) has no batch_size: use DataLoader(batch_size=..., "
            "sampler=...)",
            move="fix_call",
        )
    return size
