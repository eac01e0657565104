"""What closeranks knows about a process group beyond torch's interface."""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist

from closeranks import _closeranks
from closeranks.errors import InvalidCall

Policy = Literal["fail", "repair", "exact"]


def backend_of(group: dist.ProcessGroup | None) -> _closeranks.Backend:
    """Returns the closeranks backend that serves CPU tensors of `group` (None: the world group).

    Raises InvalidCall when another backend does, or when TORCH_DISTRIBUTED_DEBUG=DETAIL has wrapped it.
    """
    backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    if not isinstance(backend, _closeranks.Backend):
        raise InvalidCall(
            f"the group's CPU backend is {type(backend).__name__}, not closeranks: make it with backend='closeranks', "
            "and unset TORCH_DISTRIBUTED_DEBUG=DETAIL, which wraps it",
            move="fix_call",
        )
    return backend


def set_policy(group: dist.ProcessGroup | None, policy: Policy) -> None:
    """Says what becomes of the group's ops when a member is lost.

    Collective by contract: every member of `group` (None: the world group) sets the same policy at the same point,
    with no op in flight. ``fail``: every member's op raises PeerLost. ``repair``: the survivors finish the op and go
    on; right only where every slot holds the same state (data parallel), never for sharded models. ``exact``: as
    repair, but an op that lacks the input of a lost member raises Incomplete on every survivor, who repeats its step.
    Raises InvalidCall for an unknown policy, Unsupported for the last two outside of ``closeranks run``.
    """
    backend_of(group).set_policy(policy)


def last_contributors(group: dist.ProcessGroup | None = None) -> list[int]:
    """Returns the slots whose input is in the result of the group's last finished op, ascending.

    For ops called with async_op=True use ``work.contributors()``.
    """
    return backend_of(group).last_contributors()


def present(group: dist.ProcessGroup | None = None) -> list[int]:
    """Returns the slots of the group's members that are not excluded in the installed view, in rank order."""
    return backend_of(group).present()


def recent_ops(group: dist.ProcessGroup | None = None, after: int = -1) -> list[_closeranks.FinishedOp]:
    """Returns the group's last finished ops with a sequence above `after`, of the last 1024, oldest first."""
    return backend_of(group).recent_ops(after)
