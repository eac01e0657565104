"""closeranks.init(), and how a worker under `closeranks run` is prepared: stack handler, folder, recorder."""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist

from closeranks import recording

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
    prepare_worker()
    dist.init_process_group("closeranks", timeout=None if timeout is None else datetime.timedelta(seconds=timeout))


def prepare_worker() -> None:
    """What the agent's environment asks of a worker's process. Idempotent; a spare has that environment late."""
    register_stack_handler()
    take_temporary_folder()
    recording.open_recorder()


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


def take_temporary_folder() -> None:
    """Python's processes of this worker (data loaders) meet in $CLOSERANKS_TEMPORARY_FOLDER, if that is set.

    The agent removes it when the worker has ended. A folder of python's own (pymp-*) would stay for ever when its
    process is killed. What the script puts into its temporary directory is none of this.
    """
    path = os.environ.get("CLOSERANKS_TEMPORARY_FOLDER")
    config: dict[str, Any] | None = getattr(multiprocessing.current_process(), "_config", None)
    # A child has it from its parent; a folder that is in use already is python's to remove.
    if not path or config is None or multiprocessing.parent_process() is not None or "tempdir" in config:
        return
    try:
        Path(path).mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return  # as without the agent
    config["tempdir"] = path
