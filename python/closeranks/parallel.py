"""torch's own DistributedDataParallel, prepared for the loss of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
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
    of slot 0 is like any other; and it may be built while slots are vacant. Members whose models are not the same, or
    whose buckets hold other gradients, get an error before any gradient is added up.

    Collective over the members of ``process_group`` (a keyword as DDP's; default: the world group). The group of its
    own has the same members and, at this moment, the same policy; it is the result's ``process_group``. On a subgroup,
    as for torch's own calls that make groups, all ranks of the job must make the same number of such calls.

    Args:
        module: the model; its parameters must be dense floating-point tensors on the CPU.
        ddp_keywords: DDP's own, but for ``device_mesh``, ``mixed_precision`` and ``delay_all_reduce_named_params``.

    Raises:
        Unsupported: for those keywords, and later for ``register_comm_hook()`` and ``join()``.
        Mismatch: on every member, when their models differ in name, shape, type or order of a parameter; and in a
            backward pass, when the layouts of a bucket differ.
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
    _closeranks.average_over_contributors(model.reducer, group, _reducer_parameters(model))
    if model.logger is not None:
        model.logger._set_comm_hook_name("closeranks.average_over_contributors")
    return model


def settle_buckets(model: ContributorsParallel) -> None:
    """Regroups the gradients' buckets now, as DDP itself would in its second forward pass. Collective.

    DDP does it once, after its first backward pass, with two broadcasts. Done at a boundary instead, the layout is
    final before anybody can join. Nothing happens when it has been done or DDP does not do it (find_unused_parameters).
    """
    model.reducer._rebuild_buckets()


def bucket_layout(model: ContributorsParallel) -> list[list[int]]:
    """Which gradients share a bucket and in which order, by the reducer's numbers. Allocates once the gradients."""
    number = {id(parameter): place for place, parameter in enumerate(_reducer_parameters(model))}
    buckets = model.reducer._get_zeros_like_grad_buckets()
    return [[number[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


def adopt_bucket_layout(model: ContributorsParallel, layout: list[list[int]]) -> None:
    """A newcomer, while alone: regroups its buckets into the survivors' `layout`, without a backward pass. Repeatable.

    Buckets of the same size in another order would swap gradients without any error, so that they are the same is to be
    checked afterwards, against bucket_layout(). Nothing happens when DDP does not regroup (find_unused_parameters).
    """
    if model.find_unused_parameters and not model.static_graph:
        return
    flat = [number for bucket in layout for number in bucket]
    # The two broadcasts by which DDP spreads rank 0's layout are answered with the survivors'.
    backend_of(model.process_group).answer_broadcasts(
        [
            torch.tensor([*flat, len(layout)], dtype=torch.int32),
            torch.tensor([len(bucket) for bucket in layout], dtype=torch.int32),
        ]
    )
    model.reducer._reset_state()  # forgets what an earlier, cancelled attempt to join has left
    model.reducer._push_all_rebuilt_params()
    model.reducer._rebuild_buckets()


def parameter_names(model: ContributorsParallel) -> list[str]:
    """Names of the reducer's parameters, in its order."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    return [names[id(parameter)] for parameter in _reducer_parameters(model)]


def unused_bitmap_bytes(model: ContributorsParallel) -> int | None:
    """Bytes of the all_reduce by which DDP tells which parameters were used (find_unused_parameters); None: no such op.

    None as well when a bucket of gradients has as many: then the two cannot be told apart by their size.
    """
    if not model.find_unused_parameters:
        return None
    parameters = _reducer_parameters(model)
    bitmap = 4 * len(parameters)
    sizes = [sum(parameters[n].numel() * parameters[n].element_size() for n in part) for part in bucket_layout(model)]
    return None if bitmap in sizes else bitmap


def _reducer_parameters(model: ContributorsParallel) -> list[nn.Parameter]:
    parameters: list[nn.Parameter] = model._build_params_for_reducer()[0]  # type: ignore[no-untyped-call]
    return parameters
