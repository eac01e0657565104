"""Makes torch.distributed know the backend ``closeranks``."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from closeranks import _closeranks, recording
from closeranks.same_model import guard_constructor

# Ops that nobody waited for may finish this long (seconds) when the interpreter exits without destroy_process_group.
EXIT_GRACE = 5.0

_registered = False


def _create(options: c10d._DistributedBackendOptions, settings: _closeranks.Options | None) -> _closeranks.Backend:
    """Called by torch for each group this process is a member of. Raises closeranks.Error."""
    if settings is not None and not isinstance(settings, _closeranks.Options):
        raise TypeError(f"pg_options of a closeranks group must be closeranks.Options, not {type(settings).__name__}")
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = options.group_rank, options.group_size
    backend = _closeranks.create_backend(options, settings, rank, size)
    recording.set_hooks()
    return backend


def _none_for_nothing(decode: Callable[..., object]) -> Callable[..., object]:
    """Lets torch's object collectives give None for a vacant slot.

    They gather pickled bytes with their sizes. A vacant slot's size is 0, which no pickled object has; torch would try
    to unpickle the nothing and raise EOFError on every member.
    """

    @functools.wraps(decode)
    def decode_or_none(
        tensor: torch.Tensor, tensor_size: torch.Tensor | int, *args: object, **kwargs: object
    ) -> object:
        if int(tensor_size) == 0:
            return None
        return decode(tensor, tensor_size, *args, **kwargs)

    return decode_or_none


def _stop() -> None:
    _closeranks.stop(EXIT_GRACE)
    recording.ended()


def register_backend() -> None:
    """Registers the backend; the entry point ``torch.distributed.backends`` calls it. Idempotent."""
    global _registered  # noqa: PLW0603 - torch's own registry refuses a second registration
    if _registered:
        return
    _registered = True
    dist.Backend.register_backend("closeranks", _create, extended_api=True, devices=["cpu", "cuda"])
    guard_constructor()
    distributed_c10d._tensor_to_object = _none_for_nothing(distributed_c10d._tensor_to_object)
    # Many scripts end without destroy_process_group. Saying goodbye here, while the interpreter still runs, keeps the
    # engine's thread from meeting one that is being torn down.
    atexit.register(_stop)
