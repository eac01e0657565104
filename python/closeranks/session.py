"""Session: the training loop of a job whose workers may be lost and replaced (docs/session.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from closeranks import _closeranks, joining, saving
from closeranks.errors import Incomplete, InvalidCall
from closeranks.job import FixedJob, Job, this_job
from closeranks.model_group import ModelGroup
from closeranks.sampler import ElasticSampler
from closeranks.state import JobState, refuse_sharded
from closeranks.step import Batches, Outcome, Step, StepStart, batch_size_of

SlotsCallback = Callable[[list[int]], None]


class Session:
    """Carries a training loop over the loss of workers and lets their replacements in.

    Make it after ``closeranks.init()`` and :func:`closeranks.data_parallel`, on every worker alike; then::

        for step in session.steps(loader, epochs=3):
            with step as (x, y):
                loss_of(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

    Args:
        model: made by closeranks.data_parallel; any module in a process that trains alone.
        optimizer: of the model's parameters; the same kind on every worker.
        sampler: an ElasticSampler deals the samples, weights gradients by their number and keeps the ledger; None: each
            slot's loader is iterated as it is, and nobody keeps account.
        state: more that a replacement needs, by name: schedulers, a GradScaler, anything with state_dict() and
            load_state_dict(), or plain values that can be pickled (they are found in ``session.state``).
        policy: ``repair``: a step goes on without the input of a lost worker. ``exact``: it is repeated without it.
        resume: a folder of checkpoints; the highest one is loaded, none is fine.
        await_replacement_s: after a step that lost a worker the next one waits up to so many seconds for its
            replacement, once per loss. 0: nobody waits, and when a replacement comes in depends on its start-up.

    Attributes:
        step: steps done, counted over the whole job. epoch: epochs done. present: slots that trained in the last step.
        leaving: this worker was asked to leave, and its loop has ended: end the script without further collectives.

    Raises:
        Unsupported: for sharded models, static_graph, or a model wrapped by other means.
        InvalidCall: when the arguments do not fit each other.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sampler: ElasticSampler | None = None,
        state: MutableMapping[str, Any] | None = None,
        policy: Literal["repair", "exact"] = "repair",
        *,
        resume: str | Path | None = None,
        await_replacement_s: float = 0,
        job: Job | None = None,
    ) -> None:
        if policy not in ("repair", "exact"):
            raise InvalidCall(f"policy is {policy!r}; it may be 'repair' or 'exact'", move="fix_call")
        self._group = ModelGroup(model, begin_again=lambda: self._job.at_boundary(self._boundary))
        refuse_sharded(self._group.module, optimizer)
        self.state: MutableMapping[str, Any] = {} if state is None else state
        self.sampler = sampler
        self._job = this_job() if job is None else job
        self._optimizer = optimizer
        self._policy = policy
        self.slot, self._slots = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if not isinstance(self._job, FixedJob):
            self._group.set_policy(policy)
        self._job_state = JobState(self._group.module, optimizer, self.state, sampler)
        self._job_state.rest()  # what cannot be pickled is said now, not when the first worker is lost

        self.step = 0
        self.epoch = 0
        self.leaving = False
        self._present = set(range(self._slots))  # agreed: every survivor derives it from the same ops
        self._await_replacement_s = await_replacement_s
        self._awaited: set[int] = set()  # lost slots whose replacements the next boundary waits for; agreed, too
        self._batches_in_epoch = 0
        self._terms_before = 0  # of the jobs that this one resumes
        self._boundary = 0  # boundaries passed in this job
        self._is_newcomer = self._job.job_is_newcomer()
        self._current: Step | None = None
        self._leave_reason: str | None = None
        self._on_join: list[SlotsCallback] = []
        self._on_loss: list[SlotsCallback] = []
        optimizer.register_step_post_hook(self._optimizer_stepped)
        if resume is not None:
            self.resume(resume)

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def steps(self, loader: Iterable[Any], epochs: int = 1, accumulate: int = 1) -> Iterator[Step]:
        """Yields the job's steps until `epochs` epochs are done, those before a join or a resume included.

        Args:
            loader: with a sampler a DataLoader that draws from it; else anything that can be iterated once per epoch,
                with as many batches on every slot.
            epochs: counted from the job's first.
            accumulate: batches per step; then the step's block gets a list of them. At the end of a round of samples
                the list may be shorter.
        """
        if self.sampler is not None:
            self.sampler.bind(self.slot, self._slots, batch_size_of(loader, self.sampler))
        batches = Batches(loader, self.sampler, accumulate)
        at_boundary = False
        if self._is_newcomer:
            self._join()
            epochs = max(epochs, self.epoch + 1)  # it was let into a running one
            at_boundary = True
        if self.sampler is None and self._batches_in_epoch > 0:
            batches.skip(self._batches_in_epoch)
        while self.epoch < epochs:
            if not (batches.epoch_has_more() if self.sampler is None else not self.sampler.epoch_is_over):
                self._next_epoch()
                continue
            if not at_boundary and not self._pass_boundary():
                return
            at_boundary = False
            step = self._begin(batches)
            yield step
            while step.outcome is Outcome.repeat:
                step.offer_again()
                yield step
            step.require_done()

    @property
    def present(self) -> list[int]:
        """Slots that took part in all of the last step, and those that have joined since; equal on all of them."""
        return sorted(self._present)

    def on_join(self, callback: SlotsCallback) -> None:
        """`callback(slots)` runs on every worker, the new ones included, at the boundary where `slots` came in."""
        self._on_join.append(callback)

    def on_loss(self, callback: SlotsCallback) -> None:
        """`callback(slots)` runs at the end of the first step that lacks the input of `slots`."""
        self._on_loss.append(callback)

    @contextmanager
    def expected_pause(self, what: str, up_to_s: float = 600) -> Iterator[None]:
        """Within it this worker is not taken for hung for up to `up_to_s` seconds; `what` is shown meanwhile."""
        self._job.pause(what, up_to_s)
        try:
            yield
        finally:
            self._job.pause(what, 0)

    def leave(self, reason: str = "it asked to leave") -> None:
        """Leaves the job at this worker's next boundary, for good: its loop ends there, and nobody takes its slot."""
        self._leave_reason = reason

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path | None:
        """Writes a checkpoint between two steps: the lowest present slot does, or raises OSError. The others: None."""
        if self._current is not None and self._current.outcome is Outcome.running:
            raise InvalidCall("save() belongs between two steps, after the `with step` block", move="fix_call")
        if self.slot != min(self._present):
            return None
        with self.expected_pause("checkpoint"):
            return saving.save(Path(folder), (*self._view(), self.step), self._job_state, self._counters())

    def resume(self, folder: str | Path) -> bool:
        """Goes on from the highest checkpoint in `folder`; False when there is none. Before the first step.

        Collective. A replacement does nothing here: it gets the running job's state.
        """
        if self._is_newcomer:
            return False
        if self._boundary > 0:
            raise InvalidCall("resume() belongs before the first step", move="fix_call")
        found = saving.newest(Path(folder), self.slot, self._slots)
        if found is None:
            return False
        stamp, content = found
        self._set_counters(saving.restore(content, self._job_state, self.slot))
        self._terms_before = stamp[0]
        return True

    # ---- boundaries -------------------------------------------------------------------------------------------------

    def _pass_boundary(self) -> bool:
        """False: this worker leaves."""
        if self._boundary > 0:
            self._group.settle_buckets()
        if self._leave_reason is None:
            self._boundary += 1
            patience = self._await_replacement_s if self._awaited else 0.0
            passed, transfer = self._job.at_boundary(self._boundary, patience)
            if passed == "passed":
                self._awaited.clear()
                return True
            if passed == "transfer":
                assert transfer is not None
                if joining.serve(transfer, self.slot, self._job_state, self._counters(), self._group.ddp):
                    self._joined(transfer.newcomers)
                return True
        self.leaving = True
        self._job.leave(self._leave_reason or "it was asked to leave")
        return False

    def _join(self) -> None:
        """A replacement: waits to be let in. Ends the process when the job has finished without it."""
        transfer, counters = joining.enter(self._job, self.slot, self._job_state, self._group.ddp)
        self._is_newcomer = False
        self._set_counters(counters)
        self._present = set(counters["present"])
        self._awaited = set(counters["awaited"])
        self._boundary = transfer.step
        self._group.buckets_settled = True
        self._joined(transfer.newcomers)

    def _joined(self, slots: list[int]) -> None:
        self._present |= set(slots)
        self._awaited -= set(slots)
        for callback in self._on_join:
            callback(sorted(slots))

    def _counters(self) -> dict[str, Any]:
        """The session's own part of the job's state."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "batches_in_epoch": self._batches_in_epoch,
            "present": self.present,
            "awaited": sorted(self._awaited),
            "terms_before": self._terms_before,
        }

    def _set_counters(self, counters: dict[str, Any]) -> None:
        self.step = counters["step"]
        self.epoch = counters["epoch"]
        self._batches_in_epoch = counters["batches_in_epoch"]
        self._terms_before = counters["terms_before"]

    def _view(self) -> tuple[int, int]:
        """(term, n), later than any of the jobs that this one resumes."""
        term, n = self._job.job_view()
        return (self._terms_before + term, n)

    # ---- one step ---------------------------------------------------------------------------------------------------

    def _begin(self, batches: Batches) -> Step:
        turn = None
        _closeranks.record("step", self.step + 1)
        if self.sampler is None:
            given = batches.next()
        else:
            turn = self.sampler.begin(self._present, batches.accumulate)
            given = batches.of_turn(turn)
            self._group.set_weight(turn.takes[self.slot])
        batch = given if batches.accumulate > 1 else given[0]
        step = Step(self.step + 1, batch, turn, self._finish, self._take_in)
        self._batches_in_epoch += len(given)
        if self._policy == "exact":
            step.before = StepStart.of(self._group.module)
        self._current = step
        return step

    def _finish(self, step: Step) -> None:
        """The step's block has ended well: accounts for it."""
        used = self._group.contributed(self._present)
        lost = self._present - used
        self._present = used
        self._awaited |= lost
        self.step = step.number
        if self.sampler is not None and step.turn is not None:
            self.sampler.commit(step.turn, used, self.step, self._view())
        self._job.step_finished(self._boundary)
        if lost:
            for callback in self._on_loss:
                callback(sorted(lost))

    def _take_in(self, step: Step, error: BaseException) -> bool:
        """True when the step is to be repeated for `error`; everything is then as before it."""
        if not isinstance(error, Incomplete) or step.before is None or step.optimizer_steps > 0:
            return False
        self._group.forget_attempt()
        self._optimizer.zero_grad()
        step.before.restore()
        return True

    def _optimizer_stepped(self, *_arguments: object) -> None:
        if self._current is not None:
            self._current.optimizer_steps += 1

    def _next_epoch(self) -> None:
        self.epoch += 1
        self._batches_in_epoch = 0
        if self.sampler is not None:
            self.sampler.next_epoch()
