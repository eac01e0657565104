"""DistributedDataParallel over closeranks: every member must wrap the same model.

DDP adds gradients up by place: what the first parameter of one member got goes to the first parameter of all others. It
compares the shapes of the parameters, not their names, so models that hold parameters of the same shapes in another
order train on swapped gradients, without any error. Here names are compared as well, before DDP's own constructor.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from closeranks import _closeranks
from closeranks.errors import Mismatch

# The keywords of DDP by which it cuts gradients into buckets, and by which it decides how often and when it does.
LAYOUT_KEYWORDS = (
    "bucket_cap_mb",
    "bucket_cap_mb_list",
    "find_unused_parameters",
    "skip_all_reduce_unused_params",
    "static_graph",
)


@dataclass(frozen=True)
class Description:
    """What has to be the same on all members."""

    parameters: tuple[str, ...]  # in the reducer's order: "layer.weight (float32 [4, 8])"
    keywords: tuple[str, ...]  # "static_graph=True"

    def digest(self) -> int:
        """63 bits, never 0: that is the part of a member that is not there."""
        text = "\n".join([*self.parameters, "", *self.keywords])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1 | 1


def reducer_parameters(module: nn.Module, ignored: frozenset[str]) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters of `module` in the order of DDP's reducer: those that get gradients, each once."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for path, owner in module.named_modules():
        for short, parameter in owner.named_parameters(recurse=False):
            # DDP spells the names of the root's own parameters ".name" where it looks for ignored ones.
            if parameter.requires_grad and f"{path}.{short}" not in ignored:
                found.setdefault(id(parameter), (f"{path}.{short}" if path else short, parameter))
    return list(found.values())


def describe(module: nn.Module, keywords: dict[str, Any]) -> Description:
    """Of the arguments of DDP's constructor."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    ignored.update(name for name, _ in keywords.get("delay_all_reduce_named_params") or ())
    return Description(
        parameters=tuple(
            f"{name} ({str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)})"
            for name, parameter in reducer_parameters(module, frozenset(ignored))
        ),
        keywords=tuple(f"{name}={keywords[name]}" for name in LAYOUT_KEYWORDS if keywords.get(name)),
    )


def check_same_model(description: Description, group: dist.ProcessGroup) -> None:
    """Compares the members' descriptions. Collective over `group`; one small all_gather when they agree.

    Raises Mismatch on every member, naming the first difference and both sides. Members that are not there are left
    out, and one that is alone agrees with itself.
    """
    own = torch.tensor([description.digest()])
    digests = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(digests, own, group=group)
    if len({int(digest) for digest in digests} - {0}) == 1:
        return
    descriptions: list[Description | None] = [None] * group.size()
    dist.all_gather_object(descriptions, description, group=group)
    names = dist.get_process_group_ranks(group)
    there = [(names[place], found) for place, found in enumerate(descriptions) if found is not None]
    first, one = there[0]
    second, other = next((slot, found) for slot, found in there if found != one)
    word = "slot" if _closeranks.job_is_coordinated() else "rank"
    raise Mismatch(
        f"DistributedDataParallel: the models of {word} {first} and {word} {second} differ: "
        f"{difference(one, other, f'{word} {first}', f'{word} {second}')}. Gradients are added up by place, so they "
        "would go to the wrong parameters: build the same module, in the same order and with the same keywords, on "
        "every member",
        slot=second,
        op="all_gather",
        move="fix_call",
    )


def difference(one: Description, other: Description, first: str, second: str) -> str:
    """Names the first difference between two descriptions and what each side has."""
    for place in range(max(len(one.parameters), len(other.parameters))):
        left, right = (side[place] if place < len(side) else "none" for side in (one.parameters, other.parameters))
        if left != right:
            return f"parameter {place} is {left} on {first} and {right} on {second}"
    ours, theirs = (", ".join(side.keywords) or "none of them" for side in (one, other))
    return f"of the keywords that cut gradients into buckets {first} gives {ours} and {second} {theirs}"


def guard_constructor() -> None:
    """Makes DDP's constructor compare the models when its group is served by closeranks. Once per process.

    Not with ``init_sync=False``, which promises a constructor without communication.
    """
    constructor = DistributedDataParallel.__init__
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def construct(self: DistributedDataParallel, *arguments: Any, **keywords: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **keywords)
        except TypeError:
            return constructor(self, *arguments, **keywords)  # which says what is wrong with them
        bound.apply_defaults()
        group = _closeranks_group(bound.arguments)
        module = bound.arguments["module"]
        if group is not None and bound.arguments["init_sync"] and isinstance(module, nn.Module):
            description = describe(module, bound.arguments)
            if description.parameters:  # DDP itself refuses a module without any
                check_same_model(description, group)
        return constructor(self, *arguments, **keywords)

    DistributedDataParallel.__init__ = construct  # type: ignore[method-assign]


def _closeranks_group(arguments: dict[str, Any]) -> dist.ProcessGroup | None:
    """The group that DDP is to work on, if it is ours."""
    group, mesh = arguments["process_group"], arguments["device_mesh"]
    if mesh is not None:
        if group is not None or mesh.ndim != 1:
            return None  # DDP refuses these
        group = mesh.get_group(mesh_dim=0)
    elif group is None:
        group = dist.group.WORLD if dist.is_initialized() else None
    # Others bring objects of their own (torchft), or a rank that is no member.
    if type(group) is not dist.ProcessGroup or dist.get_rank(group) < 0:
        return None
    return group if dist.get_backend(group) == "closeranks" else None
