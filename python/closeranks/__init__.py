"""closeranks: a torch.distributed backend whose survivors close ranks when a worker is lost.

``torch.distributed.init_process_group("closeranks")`` is all an unmodified script needs. This module has what goes
beyond torch's interface: Session with its sampler and checkpoints, policies, contributors, DDP that averages over
contributors, and the errors.
"""

from __future__ import annotations

from closeranks._closeranks import FinishedOp, Options, Work, job_is_coordinated
from closeranks.errors import (
    Closed,
    Error,
    Evicted,
    Incomplete,
    InvalidCall,
    Mismatch,
    PeerLost,
    Refused,
    SystemFault,
    Timeout,
    Unsupported,
)
from closeranks.groups import last_contributors, present, recent_ops, set_policy
from closeranks.ledger import Account, Ledger
from closeranks.parallel import data_parallel
from closeranks.recording import mark
from closeranks.registration import register_backend
from closeranks.sampler import ElasticSampler
from closeranks.session import Session
from closeranks.startup import init, prepare_worker
from closeranks.step import Step

__version__ = "0.1.0"

__all__ = [
    "Account",
    "Closed",
    "ElasticSampler",
    "Error",
    "Evicted",
    "FinishedOp",
    "Incomplete",
    "InvalidCall",
    "Ledger",
    "Mismatch",
    "Options",
    "PeerLost",
    "Refused",
    "Session",
    "Step",
    "SystemFault",
    "Timeout",
    "Unsupported",
    "Work",
    "data_parallel",
    "init",
    "job_is_coordinated",
    "last_contributors",
    "mark",
    "present",
    "recent_ops",
    "register_backend",
    "set_policy",
]

# Importing closeranks registers it, too: torch finds the entry point only when it meets an unknown name.
register_backend()
prepare_worker()
