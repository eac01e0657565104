"""The errors of closeranks, all ``torch.distributed.DistBackendError``: each names who, where, which op, and a remedy.

The first line of the text names the member: ``slot 2`` in a coordinated job, ``rank 2`` in a plain one. What the text
says, the attributes repeat for programs; one that does not apply is None.
"""

from __future__ import annotations

from typing import Literal

from torch.distributed import DistBackendError

from closeranks import _closeranks

Move = Literal["none", "retry", "repair_group", "fix_call", "give_up", "outcome_unknown"]


class Error(DistBackendError):
    """Base of all errors of closeranks.

    Attributes:
        slot: position in the job (the world rank) of the member the error is about.
        worker: id of the process in that slot, never used again for another.
        host: where that process ran.
        group: name of the process group.
        op: the collective, "all_reduce".
        sequence: number of the op in its group.
        view: (term, n) of the view in which it happened.
        move: what the caller can do about it.
    """

    slot: int | None
    worker: int | None
    host: str | None
    group: str | None
    op: str | None
    sequence: int | None
    view: tuple[int, int] | None
    move: Move

    def __init__(
        self,
        message: str = "",
        *,
        slot: int | None = None,
        worker: int | None = None,
        host: str | None = None,
        group: str | None = None,
        op: str | None = None,
        sequence: int | None = None,
        view: tuple[int, int] | None = None,
        move: Move | None = None,
    ) -> None:
        super().__init__(message)
        if move is None:
            # torch's own bindings (backward(), above all) raise the class with its text alone; the facts lie ready.
            facts = _closeranks.failure_facts(message)
            if facts is not None:
                self.__dict__.update(facts)
                return
        self.slot = slot
        self.worker = worker
        self.host = host
        self.group = group
        self.op = op
        self.sequence = sequence
        self.view = view
        self.move = move if move is not None else "none"

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps the facts when an error travels between processes."""
        return (type(self), (str(self),), self.__dict__)


class PeerLost(Error):
    """A member of the group is gone and the group's policy does not go on without it."""


class Evicted(Error):
    """The calling worker was excluded from the job: it must stop."""


class Incomplete(Error):
    """Policy ``exact``: an op lacks the input of a member that was lost during the step; repeat the step."""


class Mismatch(Error):
    """Members made different calls under the same number of their group: another op, type, size or root."""


class Timeout(Error):
    """A deadline passed; the text names the members that have not come."""


class Closed(Error):
    """The group or the engine was shut down."""


class InvalidCall(Error):
    """The call is wrong in itself; repeating it fails again."""


class Unsupported(Error):
    """The call is right, but closeranks does not serve it."""


class Refused(Error):
    """A connection was refused: wrong token, version or frame."""


class SystemFault(Error):
    """The operating system said no; the text has its reason."""
