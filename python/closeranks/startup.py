"""closeranks.init(), and the Python stack that a hung worker leaves behind."""

from __future__ import annotations

import datetime
import faulthandler
import os
import signal
import sys
from typing import TextIO

import torch.distributed as dist

# The agent sends it to a worker that is to be killed for making no progress, and keeps what the handler writes.
STACK_SIGNAL = signal.SIGRTMIN + 6

_stack_file: TextIO | None = None


def init(timeout: float | None = None) -> None:
    """Joins the job: ``torch.distributed.init_process_group("closeranks")`` with what the launcher says.

    Under ``closeranks run`` it works for a replacement, too: that is alone until its Session is let in.

    Args:
        timeout: seconds after which an op that nobody else has entered is an error; None: torch's default.

    Raises closeranks.Error when the job cannot be reached.
    """
    register_stack_handler()
    dist.init_process_group("closeranks", timeout=None if timeout is None else datetime.timedelta(seconds=timeout))


def register_stack_handler() -> None:
    """On STACK_SIGNAL all threads' Python stacks go to $CLOSERANKS_STACK_FILE, if that is set. Idempotent.

    faulthandler writes from the signal handler itself, so it needs neither the GIL nor a next bytecode.
    """
    global _stack_file  # noqa: PLW0603 - it must stay open as long as the process lives
    path = os.environ.get("CLOSERANKS_STACK_FILE")
    if not path or _stack_file is not None:
        return
    try:
        _stack_file = open(path, "a")  # noqa: SIM115
        faulthandler.register(STACK_SIGNAL, file=_stack_file, all_threads=True, chain=False)
    except OSError as error:
        print(f"closeranks: no Python stack will be kept of this worker: {error}", file=sys.stderr, flush=True)
