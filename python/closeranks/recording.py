"""What Python tells the flight recorder: marks, data loading, uncaught exceptions, the end. docs/recorder.md.

The file is written by the core, without the GIL and without a system call. Nothing here does anything in a process that
has no recorder: outside of ``closeranks run`` and without ``CLOSERANKS_TRACE_DIR``.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import traceback
from types import TracebackType
from typing import Any

from torch.utils.data import dataloader

from closeranks import _closeranks

# Set in the environment of whoever is recorded: a process that it starts, and that imports closeranks for reasons of
# its own, inherits the rest of that environment, but is another one.
PROCESS_VARIABLE = "CLOSERANKS_TRACE_PROCESS"
LOADER_ASKED, LOADER_GAVE = 1, 0

_owner: int | None = None  # the process that is recorded, once its hooks are set


def mark(text: str, step: int | None = None) -> None:
    """Puts a line of yours into this worker's flight recorder; `step` says that this step of the training begins.

    Costs a microsecond, whether anything is recorded or not. Texts are kept once each, in a table of bounded size: the
    same few texts again and again are better than ever new ones.
    """
    if step is not None:
        _closeranks.record("step", step)
    if text:
        _closeranks.record("mark", detail=text)


def open_recorder() -> None:
    """Opens this worker's file where the environment asks for one. Idempotent."""
    owner = os.environ.get(PROCESS_VARIABLE)
    inherited = owner is not None and owner != str(os.getpid())
    # A data loader's process has closeranks from its parent's script.
    if not os.environ.get("CLOSERANKS_TRACE_DIR") or inherited or multiprocessing.parent_process() is not None:
        return
    if _closeranks.open_recorder() is not None:
        os.environ[PROCESS_VARIABLE] = str(os.getpid())
        set_hooks()


def set_hooks() -> None:
    """Exceptions, data loaders and the end of this process are recorded from here on. Idempotent."""
    global _owner  # noqa: PLW0603 - the hooks are the process's, too
    if _owner is not None or _closeranks.recorder_path() is None:
        return
    _owner = os.getpid()
    _record_exceptions()
    _record_loading()


def ended() -> None:
    """The interpreter exits in order, whatever its status."""
    if is_recorded():
        failed = getattr(sys, "last_type", None) is not None
        _closeranks.record_end("after an uncaught exception" if failed else "its interpreter has ended in order")


def is_recorded() -> bool:
    """In this very process, not in the one that it was forked from."""
    return _owner is not None and os.getpid() == _owner


def loading(number: int) -> None:
    """LOADER_ASKED: this process waits for a batch. LOADER_GAVE: no more."""
    if is_recorded():
        _closeranks.record("loading", number)


def _record_exceptions() -> None:
    before = sys.excepthook

    @functools.wraps(before)
    def record_and_go_on(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_recorded():
            line = traceback.format_exception_only(kind, error)[0].strip().split("\n")[0]
            stack = "".join(traceback.format_tb(trace)).rstrip()
            _closeranks.record("exception", detail=line[:1000], stack=stack[-8000:])
        before(kind, error, trace)

    sys.excepthook = record_and_go_on


def _record_loading() -> None:
    """Each batch of any DataLoader, two records: a microsecond or two."""
    give = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(give)
    def recorded(self: Any) -> Any:
        loading(LOADER_ASKED)
        try:
            return give(self)
        finally:
            loading(LOADER_GAVE)

    dataloader._BaseDataLoaderIter.__next__ = recorded  # type: ignore[method-assign]
