"""What Session needs of the job around it: _closeranks in a coordinated job, FixedJob anywhere else."""

from __future__ import annotations

from typing import Literal, Protocol

import torch.distributed as dist

from closeranks import _closeranks

Passed = Literal["passed", "transfer", "leave"]


class Job(Protocol):
    """A part of _closeranks (see its stub); tests bring their own."""

    def job_is_newcomer(self) -> bool: ...
    def job_view(self) -> tuple[int, int]: ...
    def at_boundary(self, step: int, patience: float = 0) -> tuple[Passed, _closeranks.StateTransfer | None]: ...
    def request_join(self) -> _closeranks.StateTransfer: ...
    def step_finished(self, step: int) -> None: ...
    def pause(self, what: str, seconds: float) -> None: ...
    def leave(self, reason: str) -> None: ...


class FixedJob:
    """A job whose members never change: started by another launcher, or a single process."""

    def job_is_newcomer(self) -> bool:
        return False

    def job_view(self) -> tuple[int, int]:
        return (0, 0)

    def at_boundary(self, step: int, patience: float = 0) -> tuple[Passed, _closeranks.StateTransfer | None]:
        return "passed", None

    def request_join(self) -> _closeranks.StateTransfer:
        raise AssertionError("nobody joins a job with fixed members")

    def step_finished(self, step: int) -> None:
        pass

    def pause(self, what: str, seconds: float) -> None:
        pass

    def leave(self, reason: str) -> None:
        pass


def this_job() -> Job:
    """The job of this process; ask after the process group has been made."""
    if dist.is_initialized() and _closeranks.job_is_coordinated():
        return _closeranks
    return FixedJob()
