"""closeranks: a torch.distributed backend whose survivors close ranks when a worker is lost.

``torch.distributed.init_process_group("closeranks")`` is all an unmodified script needs. This module has what goes
beyond torch's interface: policies, contributors, DDP that averages over contributors, and the errors.
"""

from __future__ import annotations

from closeranks._closeranks import FinishedOp, Options, Work, job_is_coordinated
from closeranks.errors import (
    Closed,
    Error,
    Evicted,
    InvalidCall,
    Mismatch,
    PeerLost,
    Refused,
    SystemFault,
    Timeout,
    Unsupported,
)
from closeranks.groups import last_contributors, present, recent_ops, set_policy
from closeranks.parallel import data_parallel
from closeranks.registration import register_backend

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Error",
    "Evicted",
    "FinishedOp",
    "InvalidCall",
    "Mismatch",
    "Options",
    "PeerLost",
    "Refused",
    "SystemFault",
    "Timeout",
    "Unsupported",
    "Work",
    "data_parallel",
    "job_is_coordinated",
    "last_contributors",
    "present",
    "recent_ops",
    "register_backend",
    "set_policy",
]

# Importing closeranks registers it, too: torch finds the entry point only when it meets an unknown name.
register_backend()
