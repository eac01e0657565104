"""The state of a job: what a newcomer takes over and what a checkpoint holds.

It has two parts. The replicated tensors - parameters and the optimizer's - are the same on every slot and travel as
raw bytes, a stripe from each source. The rest - buffers, structure, the user's objects, counters - is small and comes
pickled from the lowest present slot: BatchNorm's statistics, for one, are each slot's own, and its are those that DDP
gives to the others.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from closeranks.errors import InvalidCall, Unsupported
from closeranks.sampler import ElasticSampler


@dataclass(frozen=True)
class TensorPlace:
    """Stands in the optimizer's pickled state for a tensor that travels by itself."""

    index: int  # among the optimizer's tensors


@dataclass(frozen=True)
class Described:
    """Name, shape and type of a replicated tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class JobState:
    """Captures and restores all of a job's state but the session's own counters.

    Args:
        module: the model inside DDP.
        optimizer: its state is replicated, too.
        objects: the user's: what has state_dict() and load_state_dict(), or any value that can be pickled. Dicts, lists
            and sets are restored in place, other values are replaced in `objects`.
        sampler: None when the data is not dealt by closeranks.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        objects: MutableMapping[str, Any],
        sampler: ElasticSampler | None,
    ) -> None:
        self.module = module
        self.optimizer = optimizer
        self.objects = objects
        self.sampler = sampler

    # ---- giving -----------------------------------------------------------------------------------------------------

    def tensors(self) -> tuple[list[Described], list[torch.Tensor]]:
        """The replicated tensors, in the same order on every slot; the tensors themselves, not copies."""
        named = [(f"parameter {name}", parameter.detach()) for name, parameter in self.module.named_parameters()]
        optimizer_tensors: list[tuple[str, torch.Tensor]] = []
        _take_out(self._optimizer_state(), "optimizer", optimizer_tensors)
        named += optimizer_tensors
        described = [Described(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named]
        return described, [tensor for _, tensor in named]

    def rest(self) -> dict[str, Any]:
        """Everything else, of values that can be pickled. Raises InvalidCall naming the user's object that cannot."""
        return {
            "optimizer": _take_out(self._optimizer_state(), "optimizer", []),
            "param_groups": self.optimizer.state_dict()["param_groups"],
            "buffers": {name: buffer.detach().cpu().clone() for name, buffer in self.module.named_buffers()},
            "objects": {name: _pickled(name, value) for name, value in self.objects.items()},
            "sampler": None if self.sampler is None else self.sampler.state_dict(),
        }

    # ---- taking -----------------------------------------------------------------------------------------------------

    def places(self, described: list[Described]) -> list[torch.Tensor]:
        """CPU tensors for the replicated tensors' bytes; the parameters' own memory where that can be.

        Raises InvalidCall when the model is another one than the job's.
        """
        parameters = dict(self.module.named_parameters())
        theirs = [tensor.name for tensor in described if tensor.name.startswith("parameter ")]
        if theirs != [f"parameter {name}" for name in parameters]:
            missing = set(theirs) ^ {f"parameter {name}" for name in parameters}
            raise InvalidCall(
                f"this worker's model has other parameters than the job's ({', '.join(sorted(missing)[:5])}): every "
                "worker must build the same model",
                move="fix_call",
            )
        places = []
        for tensor in described:
            parameter = parameters.get(tensor.name.removeprefix("parameter "))
            if parameter is not None and tensor.name.startswith("parameter "):
                if (tuple(parameter.shape), parameter.dtype) != (tensor.shape, tensor.dtype):
                    raise InvalidCall(
                        f"{tensor.name} is {tuple(parameter.shape)} {parameter.dtype} here and {tensor.shape} "
                        f"{tensor.dtype} in the job: every worker must build the same model",
                        move="fix_call",
                    )
                if parameter.device.type == "cpu" and parameter.is_contiguous():
                    places.append(parameter.detach())
                    continue
            places.append(torch.empty(tensor.shape, dtype=tensor.dtype))
        return places

    def take_over(self, rest: dict[str, Any], described: list[Described], tensors: list[torch.Tensor]) -> None:
        """Puts the state in: `tensors` are places() filled. Raises InvalidCall when it does not fit."""
        parameters = dict(self.module.named_parameters())
        optimizer_tensors = []
        with torch.no_grad():
            for tensor, value in zip(described, tensors, strict=True):
                if not tensor.name.startswith("parameter "):
                    optimizer_tensors.append(value)
                    continue
                parameter = parameters[tensor.name.removeprefix("parameter ")]
                if parameter.data_ptr() != value.data_ptr() or parameter.device != value.device:
                    parameter.copy_(value)
            buffers = dict(self.module.named_buffers())
            if buffers.keys() != rest["buffers"].keys():
                raise InvalidCall(
                    "this worker's model has other buffers than the job's: every worker must build the same model",
                    move="fix_call",
                )
            for name, value in rest["buffers"].items():
                buffers[name].copy_(value)
        self._load_optimizer(_put_back(rest["optimizer"], optimizer_tensors), rest["param_groups"])
        for name, content in rest["objects"].items():
            self._load_object(name, content)
        if self.sampler is not None and rest["sampler"] is not None:
            self.sampler.load_state_dict(rest["sampler"])

    def _optimizer_state(self) -> dict[int, Any]:
        state = self.optimizer.state_dict()["state"]
        return {key: state[key] for key in sorted(state)}

    def _load_optimizer(self, state: dict[int, Any], groups: list[dict[str, Any]]) -> None:
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        # torch casts floating-point state to its parameter's type; a master copy in a wider one must stay.
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for index, values in state.items():
            for key, value in values.items() if isinstance(values, dict) else ():
                held = self.optimizer.state[parameters[index]].get(key)
                if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor) and held.dtype != value.dtype:
                    self.optimizer.state[parameters[index]][key] = value.to(held.device)

    def _load_object(self, name: str, content: bytes) -> None:
        if name not in self.objects:
            raise InvalidCall(
                f"the job's state has {name!r}, and this worker's Session(state=...) has not: give the same objects on "
                "all workers",
                move="fix_call",
            )
        held, value = self.objects[name], _unpickled(content)
        if hasattr(held, "load_state_dict"):
            held.load_state_dict(value)
        elif isinstance(held, dict | set) and type(held) is type(value):
            held.clear()
            held.update(value)
        elif isinstance(held, list) and isinstance(value, list):
            held[:] = value
        else:
            self.objects[name] = value


def digest_of(described: list[Described], *more: object) -> bytes:
    """32 bytes that are equal on two workers when their replicated tensors (and `more`) are laid out alike."""
    content = "\n".join(f"{tensor.name} {tensor.shape} {tensor.dtype}" for tensor in described)
    return hashlib.sha256((content + repr(more)).encode()).digest()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, uint8 on the CPU; its own memory if it is contiguous there, else a copy."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def refuse_sharded(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises Unsupported for models and optimizers of which each slot holds a shard: no survivor has a dead one's."""
    what = ""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and any(isinstance(p, tensors.DTensor) for p in module.parameters()):
        what = "the model's parameters are DTensors"
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(
        isinstance(part, fsdp.FullyShardedDataParallel | fsdp.FSDPModule) for part in module.modules()
    ):
        what = "the model is sharded by FSDP"
    zero = sys.modules.get("torch.distributed.optim")
    kind = getattr(zero, "ZeroRedundancyOptimizer", None)
    if kind is not None and isinstance(optimizer, kind):
        what = "the optimizer's state is sharded"
    if what:
        raise Unsupported(
            f"{what}: Session replaces workers whose state every other one has, and a lost worker's shard is on no "
            "survivor. Use closeranks.data_parallel, or restart from a checkpoint",
            move="fix_call",
        )


def _take_out(value: Any, name: str, tensors: list[tuple[str, torch.Tensor]]) -> Any:
    """`value` with its tensors moved to the end of `tensors`, a TensorPlace in the place of each."""
    if isinstance(value, torch.Tensor):
        tensors.append((name, value.detach()))
        return TensorPlace(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _take_out(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_take_out(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _put_back(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, TensorPlace):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_back(part, tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_put_back(part, tensors) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _pickled(name: str, value: Any) -> bytes:
    method: Callable[[], Any] | None = getattr(value, "state_dict", None)
    file = io.BytesIO()
    try:
        torch.save(method() if method is not None else value, file)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidCall(
            f"Session(state=...): {name!r} cannot be pickled ({error}): give it state_dict() and load_state_dict(), or "
            "leave it out",
            move="fix_call",
        ) from error
    return file.getvalue()


def _unpickled(content: bytes) -> Any:
    # From a worker that proved the job's token, or from the job's own checkpoint.
    return torch.load(io.BytesIO(content), weights_only=False)
