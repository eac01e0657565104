"""The C++ extension (bindings/torch/module.cc)."""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

class Options(c10d.Backend.Options):
    """Options of a closeranks group, for ``pg_options``.

    policy: "fail", "repair" or "exact"; None: CLOSERANKS_POLICY for the world group, "fail" for any other.
    lowest_member_is_root: for DDP's own group only (closeranks.data_parallel).
    """

    def __init__(self, policy: str | None = None, lowest_member_is_root: bool = False) -> None: ...
    @property
    def policy(self) -> str | None: ...
    @property
    def lowest_member_is_root(self) -> bool: ...

class Work(c10d.Work):
    """What an op called with async_op=True returns."""

    def contributors(self) -> list[int]:
        """Slots whose input is in some part of the result, ascending. After wait(); raises InvalidCall before."""
    def contributors_in_all(self) -> list[int]:
        """Slots whose input is in every part of the result, ascending. After wait(); raises InvalidCall before."""

class FinishedOp:
    """One finished op of a group."""

    @property
    def sequence(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def time(self) -> float:
        """Unix time in seconds."""
    @property
    def contributors(self) -> list[int]:
        """Slots whose input is in some part of the result."""
    @property
    def in_all(self) -> list[int]:
        """Slots whose input is in every part of the result."""

def open_recorder() -> str | None:
    """Opens this process's flight recorder as its launcher's environment says; its path, or None."""

def recorder_path() -> str | None: ...
def record(kind: str, number: int = 0, detail: str = "", stack: str = "") -> None:
    """An event of this process: mark, step, loading, exception, stack, state_transfer. Nothing without a recorder."""

def record_end(how: str) -> None: ...

class Backend(c10d.Backend):
    """One group's backend."""

    @property
    def policy(self) -> str: ...
    def set_policy(self, policy: str) -> None: ...
    def last_contributors(self) -> list[int]: ...
    def present(self) -> list[int]: ...
    def recent_ops(self, after: int = -1) -> list[FinishedOp]: ...
    def set_weight(self, weight: float) -> None:
        """Weight of this member's input in the AVG ops issued from here on."""
    def answer_broadcasts(self, tensors: list[torch.Tensor]) -> None:
        """While alone: the group's next broadcasts are answered with these, in order (contiguous, on the CPU)."""
    def alone(self) -> bool:
        """True while this worker is a newcomer that has not joined: ops run on its own input."""
    def perform_nocolor_split(self, device: Any) -> None: ...

def create_backend(
    options: c10d._DistributedBackendOptions, settings: Options | None, world_rank: int, world_size: int
) -> Backend: ...

class Transfer:
    """A send or a receive of a StateTransfer."""

    def done(self) -> bool: ...
    def wait(self, timeout: float = 0.0) -> None:
        """Waits until it is done (seconds; 0: the group's own deadline). Raises what it ended with."""

class StateTransfer:
    """The state on its way to newcomers, between at_boundary()/request_join() and finish()."""

    @property
    def round(self) -> tuple[int, int]: ...
    @property
    def step(self) -> int:
        """The step everybody begins after the join."""
    @property
    def newcomers(self) -> list[int]: ...
    @property
    def sources(self) -> list[int]:
        """Slots of the view before the join, ascending."""
    def send(self, slot: int, tensor: torch.Tensor) -> Transfer:
        """Sends the bytes of `tensor` (contiguous, on the CPU) to `slot`; keeps it alive until done."""
    def receive(self, slot: int, tensor: torch.Tensor) -> Transfer:
        """Receives as many bytes as `tensor` has; messages from one slot come in the order they were sent."""
    def finish(self, ok: bool, reason: str = "") -> bool:
        """Says how it went and waits for the others. True: joined; False: cancelled, nothing has changed.

        After False a survivor begins its step, a newcomer calls request_join() again.
        """

def average_over_contributors(
    reducer: c10d.Reducer, group: dist.ProcessGroup, parameters: list[torch.nn.Parameter]
) -> None:
    """Makes `reducer` average its buckets over the contributors; `parameters` are its own, in its order."""

def job_is_coordinated() -> bool: ...
def job_is_newcomer() -> bool:
    """True from the start of a replacement until it is let in. Like all that follow: once a group has been made."""

def job_slot() -> int: ...
def job_view() -> tuple[int, int]: ...
def job_present() -> list[int]: ...
def at_boundary(step: int, patience: float = 0) -> tuple[Literal["passed", "transfer", "leave"], StateTransfer | None]:
    """Between two steps; `step` is the number of the step about to begin, 1 for the first.

    `patience`: while a slot is vacant that may be filled again, the step waits so many seconds for somebody to join.
    """

def request_join() -> StateTransfer:
    """Newcomer: asks to be let in and waits. Raises Closed with move "none" when the job has finished."""

def step_finished(step: int) -> None: ...
def pause(what: str, seconds: float) -> None:
    """Not to be taken for hung for so long; 0: over."""

def leave(reason: str) -> None:
    """Leaves the job for good."""

def in_shared_memory(tensor: torch.Tensor) -> bool:
    """Whether peers can work on the storage of `tensor` in place: all of it lies in this process's shared arena."""

def shared_memory_usage() -> dict[str, int]:
    """Of this process's shared arena: capacity_bytes, in_use_bytes, blocks, held_bytes, idle_bytes, resident_bytes,
    given_back_bytes, retired_bytes (include/closeranks/shared_memory.h). All 0 while tensors are not shared.
    """

def failure_facts(message: str) -> dict[str, Any] | None: ...
def stop(grace_seconds: float) -> None: ...
