"""The group of a Session's model: who is in its gradients, and how its members go on together after a loss.

A process that trains alone has none: there everybody is in everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from closeranks.errors import Incomplete, Unsupported
from closeranks.groups import backend_of, set_policy
from closeranks.parallel import ContributorsParallel, settle_buckets, unused_bitmap_bytes


class ModelGroup:
    """What Session asks of the model's group.

    Args:
        model: as Session's. Raises Unsupported for one whose workers cannot be lost.
        begin_again: tells the job that the running step begins again (policy exact).

    Attributes:
        ddp: the model as closeranks.data_parallel made it; None: trained alone. module: the model inside.
        buckets_settled: DDP has its last bucket layout.
    """

    def __init__(self, model: nn.Module, begin_again: Callable[[], object]) -> None:
        self.ddp = _data_parallel_of(model)
        self.module: nn.Module = model if self.ddp is None else self.ddp.module
        self.buckets_settled = self.ddp is None
        self._begin_again = begin_again
        self._bitmap_bytes = None if self.ddp is None else unused_bitmap_bytes(self.ddp)
        self._last_op = -1

    def set_policy(self, policy: Literal["repair", "exact"]) -> None:
        if self.ddp is not None:
            set_policy(self.ddp.process_group, policy)

    def set_weight(self, samples: int) -> None:
        """From here on this slot's gradients count by so many samples."""
        if self.ddp is not None:
            backend_of(self.ddp.process_group).set_weight(float(samples))

    def contributed(self, present: Collection[int]) -> set[int]:
        """Those of `present` in all pieces of every gradient op since this was last asked (protocol rule 25).

        All of them when there was no such op.
        """
        slots = set(present)
        for op in self._new_ops():
            if op.kind == "all_reduce" and op.bytes != self._bitmap_bytes:
                slots &= set(op.in_all)
        return slots

    def settle_buckets(self) -> None:
        """DDP's buckets get their last layout, so that newcomers can take it over. Collective, between two steps."""
        while self.ddp is not None and not self.buckets_settled:
            try:
                settle_buckets(self.ddp)
                self.buckets_settled = True
            except Incomplete:
                self._go_on_without_the_lost(self.ddp)

    def forget_attempt(self) -> None:
        """Policy exact, after Incomplete: the attempt leaves nothing behind, and what follows expects survivors only.

        Every survivor does this at the same op. When it returns no op of the group is under way any more: not the
        attempt's other buckets either, in the memory that the next attempt writes to.
        """
        if self.ddp is None:
            return
        self._go_on_without_the_lost(self.ddp)
        self.ddp.reducer._reset_state()
        self.buckets_settled = False  # the reset made DDP forget them
        self._new_ops()

    def _go_on_without_the_lost(self, ddp: ContributorsParallel) -> None:
        while True:
            self._begin_again()
            try:
                dist.barrier(group=ddp.process_group)
                return
            except Incomplete:  # yet another worker was lost
                continue

    def _new_ops(self) -> list[Any]:
        """The group's ops that have finished since this was last asked."""
        if self.ddp is None:
            return []
        ops = backend_of(self.ddp.process_group).recent_ops(self._last_op)
        if ops:
            self._last_op = ops[-1].sequence
        return ops


def _data_parallel_of(model: nn.Module) -> ContributorsParallel | None:
    """The model as closeranks.data_parallel made it; None for a plain module in a process that trains alone."""
    if isinstance(model, ContributorsParallel):
        if model.static_graph:
            raise Unsupported(
                "Session cannot train with static_graph=True: DDP makes other collectives in its first step, and a "
                "replacement's first step is not the others'. Leave it out",
                move="fix_call",
            )
        return model
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    if isinstance(model, DistributedDataParallel) or not alone:
        raise Unsupported(
            f"Session trains a model wrapped by closeranks.data_parallel, not {type(model).__name__}: gradients must "
            "be averaged over the workers that contributed",
            move="fix_call",
        )
    return None
