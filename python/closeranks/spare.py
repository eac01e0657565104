"""A spare: a process that has imported what a worker needs, and waits to become one.

``closeranks run`` starts it with a socket as its standard input (src/agent/spare_process.h has the format). It says
``ready`` there, waits, and is told once which environment and which script it is to have. It forks then, and the child
waits in its place, with everything imported: only a job's first spare imports anything. The parent is that worker from
then on: the same process, with an empty standard input, its own ``__main__``, and nothing of the spare in its
tracebacks. End of file instead of orders means that the agent is gone: the spare ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import socket
import struct
import sys
import time
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

HEADER = struct.Struct("<II")
STANDARD_STREAMS = (0, 1, 2)

# What a training script imports before its first step; the last is imported by torch itself at the first optimizer or
# DDP, and takes longest. None of it starts a thread: a fork by the script (data loaders) stays as safe as ever.
WARM = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "closeranks",
    "torch._dynamo",
)


def warm_up() -> None:
    """Imports; what is missing here the script may not need either, or will say so itself."""
    for name in WARM:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"closeranks: a spare goes on without {name}: {error}", file=sys.stderr)


@dataclass(frozen=True)
class Orders:
    """What to become. successor: its standard streams, to be closed by whoever is not the successor; or none."""

    environment: dict[bytes, bytes]
    command: list[str]
    successor: list[int]


def _receive(connection: socket.socket, size: int) -> bytes | None:
    parts = []
    while size > 0:
        part = connection.recv(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive_orders(connection: socket.socket) -> Orders | None:
    """They come once; None when the agent has gone. Waits as long as that takes."""
    # Descriptors come with the first byte.
    first, successor, _, _ = socket.recv_fds(connection, HEADER.size, len(STANDARD_STREAMS))
    rest = _receive(connection, HEADER.size - len(first)) if first else None
    if rest is None:
        return None
    environment_bytes, command_bytes = HEADER.unpack(first + rest)
    body = _receive(connection, environment_bytes + command_bytes)
    if body is None:
        return None
    environment = {}
    for entry in body[:environment_bytes].split(b"\0")[:-1]:
        name, _, value = entry.partition(b"=")
        environment[name] = value
    command = [os.fsdecode(word) for word in body[environment_bytes:].split(b"\0")[:-1]]
    return Orders(environment, command, successor if len(successor) == len(STANDARD_STREAMS) else [])


def leave_successor(streams: list[int]) -> bool:
    """Forks the next spare, which has `streams`; True in it. An orphan from the start, so the agent is its parent."""
    try:
        between = os.fork()
    except OSError:
        return False  # the agent sees that nobody holds the streams
    if between > 0:
        os.waitpid(between, 0)
        return False
    parent = os.getpid()
    try:
        if os.fork() > 0:
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == parent:  # the agent takes it for its own only as a child
        time.sleep(0.001)
    os.setpgid(0, 0)
    for stream, place in zip(streams, STANDARD_STREAMS, strict=True):
        os.dup2(stream, place)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()  # python's and torch's own do not need it: reseeded at a fork, and constant
    return True


def take_environment(environment: dict[bytes, bytes]) -> None:
    """Exactly `environment`, for Python and for C alike."""
    for name in [name for name in os.environb if name not in environment]:
        del os.environb[name]
    for name, value in environment.items():
        if name and os.environb.get(name) != value:
            os.environb[name] = value


def leave_standard_input() -> None:
    """As of a started worker: empty."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def run_script(command: list[str]) -> None:
    """Runs `command`, what stands after ``python -u``: ``script.py arguments`` or ``-m module arguments``."""
    if command[0] == "-m":
        # What `python -m` itself calls; it runs in the __main__ that it finds.
        sys.argv = command[1:]
        if not sys.flags.safe_path:
            sys.path[0] = str(Path.cwd())
        sys.modules["__main__"] = types.ModuleType("__main__")
        runpy._run_module_as_main(command[1], alter_argv=True)  # type: ignore[attr-defined]
        return
    sys.argv = list(command)
    path = command[0]
    if not Path(path).is_file():
        # A folder or an archive with a __main__, or the error that python has for it.
        runpy.run_path(path, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(path).resolve().parent)
    # A __main__ as python itself makes it: what is pickled by name is found there, also after the script's last line.
    main = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(Path(path).absolute()))
    main.__dict__.update(
        __file__=str(Path(path).absolute()),
        __loader__=loader,
        __spec__=None,
        __cached__=None,
        __builtins__=__builtins__,
    )
    main.__package__ = None
    sys.modules["__main__"] = main
    code = loader.get_code("__main__")
    assert code is not None
    exec(code, main.__dict__)


def _of_the_script(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Without the frames of this file and of runpy, which the script's author knows nothing of."""
    ours = {__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap_external>"}
    own = traceback
    while own is not None and (
        own.tb_frame.f_code.co_filename in ours or "importlib" in own.tb_frame.f_code.co_filename
    ):
        own = own.tb_next
    return own


def become(command: list[str]) -> NoReturn:
    """The worker's life: ends as ``python script.py`` would."""
    atexit.register(gc.unfreeze)  # what is frozen is not freed at the end: extensions complain of that as their leak
    try:
        run_script(command)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        own = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(own), own)
        sys.exit(1)
    sys.exit(0)


def prepare_worker() -> None:
    """As closeranks does when it is imported; the spare did not have the worker's environment then."""
    startup = sys.modules.get("closeranks.startup")
    if startup is not None:
        startup.prepare_worker()


def wait_for_orders(connection: socket.socket) -> Orders:
    """Says that it is ready. Ends the process when the agent has gone."""
    # Orders may have come during the imports: the agent has hung up then, and does not hear that it is ready.
    with contextlib.suppress(OSError):
        connection.sendall(f"ready {os.getpid()}\n".encode())
    try:
        orders = receive_orders(connection)
    except OSError:
        orders = None
    connection.close()
    if orders is None:
        sys.exit(0)
    return orders


def main() -> NoReturn:
    warm_up()
    gc.collect()
    gc.freeze()  # its marks would make every page of what is imported a page of one's own
    orders = wait_for_orders(socket.socket(fileno=os.dup(0)))
    # Each turn is another process: the successor of the one before.
    while orders.successor:
        successor = leave_successor(orders.successor)
        for stream in orders.successor:
            os.close(stream)
        if not successor:
            break
        orders = wait_for_orders(socket.socket(fileno=os.dup(0)))
    leave_standard_input()
    take_environment(orders.environment)
    prepare_worker()
    become(orders.command)
