"""Real worker processes for tests: forked from the test process, one per rank, with results and errors brought back.

The test process itself must stay free of torch's threads (a fork copies none of them), so it computes nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

Body = Callable[[int, int], Any]


@dataclass
class Outcome:
    """What became of one worker: its return value, or the exception it ended with, or neither if it was killed."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    ended: float = 0.0  # time.monotonic() when its answer came
    exit_code: int | None = None


@dataclass
class Workers:
    """Processes of one job. Use as returned by `start`; `finish` must be called."""

    processes: list[BaseProcess]
    pipes: list[Connection]
    outcomes: list[Outcome] = field(default_factory=list)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Sends a signal to one worker; returns time.monotonic() of the call."""
        pid = self.processes[rank].pid
        assert pid is not None
        now = time.monotonic()
        os.kill(pid, number)
        return now

    def finish(self, timeout: float = 60.0) -> list[Outcome]:
        """Collects all outcomes. After `timeout` seconds what is left is killed, and the test fails."""
        deadline = time.monotonic() + timeout
        self.outcomes = [Outcome() for _ in self.processes]
        open_pipes = dict(zip(self.pipes, range(len(self.pipes)), strict=True))
        while open_pipes and time.monotonic() < deadline:
            for pipe in wait(list(open_pipes), timeout=max(0.0, deadline - time.monotonic())):
                assert isinstance(pipe, Connection)
                outcome = self.outcomes[open_pipes.pop(pipe)]
                with contextlib.suppress(EOFError):  # killed: it says nothing
                    outcome.value, outcome.error, outcome.trace = pickle.loads(pipe.recv_bytes())
                    outcome.ended = time.monotonic()
        hung = sorted(open_pipes.values())
        for process, outcome in zip(self.processes, self.outcomes, strict=True):
            process.join(max(0.1, deadline - time.monotonic()) if not hung else 0.1)
            if process.is_alive():
                hung.append(self.processes.index(process))
                process.kill()
                process.join()
            outcome.exit_code = process.exitcode
        for pipe in self.pipes:
            pipe.close()
        assert not hung, f"ranks {sorted(set(hung))} did not end within {timeout} s"
        return self.outcomes

    def values(self, timeout: float = 60.0) -> list[Any]:
        """Collects all return values; any error or kill fails the test with the worker's traceback."""
        outcomes = self.finish(timeout)
        for rank, outcome in enumerate(outcomes):
            assert outcome.error is None, f"rank {rank}:\n{outcome.trace}"
            assert outcome.exit_code == 0, f"rank {rank} ended with {outcome.exit_code}"
        return [outcome.value for outcome in outcomes]


def context() -> ForkContext:
    return multiprocessing.get_context("fork")


def as_worker(body: Body, rank: int, world: int, environment: dict[str, str]) -> Any:
    """Calls body(rank, world) with the environment a launcher gives."""
    os.environ.update(environment)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    return body(rank, world)


def _worker(body: Body, rank: int, world: int, pipe: Connection, environment: dict[str, str]) -> None:
    try:
        answer: tuple[Any, BaseException | None, str] = (as_worker(body, rank, world, environment), None, "")
    except BaseException as error:
        answer = (None, error, traceback.format_exc())
    try:
        data = pickle.dumps(answer)
    except Exception as error:
        data = pickle.dumps((None, RuntimeError(f"result cannot be pickled: {error}"), answer[2]))
    pipe.send_bytes(data)
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()


def start(body: Body, world: int, environment: dict[str, str] | None = None) -> Workers:
    """Forks `world` processes that run body(rank, world)."""
    forks = context()
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    for rank in range(world):
        ours, theirs = forks.Pipe(duplex=False)
        process = forks.Process(target=_worker, args=(body, rank, world, theirs, environment or {}))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    return Workers(processes, pipes)


def in_group(body: Body, folder: Path, backend: str = "closeranks", timeout: float = 30.0) -> Body:
    """Wraps `body` so that it runs inside of an initialised world group, left in order afterwards."""

    def inside(rank: int, world: int) -> Any:
        import torch  # noqa: PLC0415 - in the worker
        import torch.distributed as dist  # noqa: PLC0415

        torch.set_num_threads(1)
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=timeout),
        )
        value = body(rank, world)
        dist.destroy_process_group()
        return value

    return inside
