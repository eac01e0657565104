"""torch's own DistributedDataParallel, prepared for the loss of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from closeranks import _closeranks
from closeranks.errors import Unsupported
from closeranks.groups import backend_of


class ContributorsParallel(DistributedDataParallel):
    """DDP that averages gradients over their contributors. Made by :func:`data_parallel`."""

    def register_comm_hook(self, state: object, hook: Callable[..., object]) -> NoReturn:
        """Refused: DDP has room for one hook, and the averaging needs it."""
        raise Unsupported(
            f"closeranks.data_parallel averages gradients over their contributors in DDP's one communication hook; "
            f"{getattr(hook, '__qualname__', hook)} cannot be added (DDP's mixed_precision and optimizers in backward "
            "are such hooks, too). Use torch's DistributedDataParallel to bring your own",
            move="fix_call",
        )

    def _register_builtin_comm_hook(self, comm_hook_type: object) -> NoReturn:
        self.register_comm_hook(None, lambda: comm_hook_type)

    def join(self, *_args: object, **_keywords: object) -> NoReturn:
        """Refused: its shadow ops would count members that have run out of data as contributors."""
        raise Unsupported(
            "join() cannot be used with closeranks.data_parallel: a member without data would be averaged in as zeros. "
            "Give every slot the same number of batches",
            move="fix_call",
        )


def data_parallel(module: nn.Module, **ddp_keywords: Any) -> ContributorsParallel:
    """Wraps `module` in torch's DistributedDataParallel on a group of its own.

    Gradients are averaged over the slots that contributed to them, not over the world size; DDP's own broadcasts
    (buffers before each forward pass, the bucket layout once) come from the lowest slot that contributes, so the loss
    of slot 0 is like any other; and it may be built while slots are vacant.

    Collective over the members of ``process_group`` (a keyword as DDP's; default: the world group). The group of its
    own has the same members and, at this moment, the same policy; it is the result's ``process_group``. On a subgroup,
    as for torch's own calls that make groups, all ranks of the job must make the same number of such calls.

    Args:
        module: the model; its parameters must be dense floating-point tensors on the CPU.
        ddp_keywords: DDP's own, but for ``device_mesh``, ``mixed_precision`` and ``delay_all_reduce_named_params``.

    Raises:
        Unsupported: for those keywords, and later for ``register_comm_hook()`` and ``join()``.
        closeranks.Error: when the group cannot be made.
    """
    for keyword in ("device_mesh", "mixed_precision", "delay_all_reduce_named_params"):
        if ddp_keywords.get(keyword) is not None:
            raise Unsupported(
                f"closeranks.data_parallel does not take {keyword}: it makes DDP reduce gradients by other means than "
                "the average over contributors",
                move="fix_call",
            )
    parent = ddp_keywords.pop("process_group", None) or dist.group.WORLD
    group = dist.new_group(
        dist.get_process_group_ranks(parent),
        timeout=backend_of(parent).options._timeout,
        backend="closeranks",
        pg_options=_closeranks.Options(policy=backend_of(parent).policy, lowest_member_is_root=True),
        # Members alone make a subgroup's; the world's is made as any group, by all.
        use_local_synchronization=parent is not dist.group.WORLD,
        group_desc="closeranks.data_parallel",
        sort_ranks=False,
    )
    assert isinstance(group, dist.ProcessGroup)  # every caller is a member of its own parent group
    model = ContributorsParallel(module, process_group=group, **ddp_keywords)
    _closeranks.average_over_contributors(model.reducer, group)
    if model.logger is not None:
        model.logger._set_comm_hook_name("closeranks.average_over_contributors")
    return model
