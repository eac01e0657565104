"""One job for many tests: workers that stay in their process group and run what they are given, one body after another.

Starting a job costs more than most of what is tested in it. A body that fails ends the pool: its group is in an unknown
state, and the next test that asks gets a fresh one.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from worker_processes import as_worker, context, in_group

Body = Callable[..., Any]


class WorkerPool:
    """`world` forked workers inside of an initialised world group of closeranks."""

    def __init__(self, world: int, environment: dict[str, str]) -> None:
        self.world = world
        self.folder = Path(tempfile.mkdtemp(prefix="closeranks-pool-"))
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        forks: ForkContext = context()
        for rank in range(world):
            ours, theirs = forks.Pipe()
            serve = in_group(_served_by(theirs), self.folder)
            process = forks.Process(target=as_worker, args=(serve, rank, world, environment))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self.alive = True

    def run(self, body: Body, *arguments: Any, timeout: float = 60.0) -> list[Any]:
        """Calls body(rank, world, *arguments) in every worker, and returns what they return, by rank.

        `body` and `arguments` travel by pickle: functions of a test module do. Anything raised fails the test.
        """
        request = pickle.dumps((body, arguments))
        for pipe in self.pipes:
            pipe.send_bytes(request)
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        deadline = time.monotonic() + timeout
        waiting: dict[Any, int] = dict(zip(self.pipes, range(self.world), strict=True))
        while waiting and not failures:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                failures = {rank: f"no answer within {timeout} s" for rank in waiting.values()}
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    answers[rank], trace = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    trace = "the process has ended"
                if trace:
                    failures[rank] = trace
        if failures:
            self.close()
            raise AssertionError("\n".join(f"rank {rank}:\n{trace}" for rank, trace in sorted(failures.items())))
        return [answers[rank] for rank in range(self.world)]

    def close(self) -> None:
        """Ends the workers, in order if they are idle."""
        self.alive = False
        for pipe in self.pipes:
            # Not by closing alone: workers forked later hold this end of the pipe, too.
            with contextlib.suppress(OSError):
                pipe.send_bytes(pickle.dumps(None))
            pipe.close()
        deadline = time.monotonic() + 10
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def _served_by(pipe: Connection) -> Body:
    def serve(rank: int, world: int) -> None:
        while True:
            request = pickle.loads(pipe.recv_bytes())
            if request is None:
                return
            body, arguments = request
            try:
                answer: tuple[Any, str] = (body(rank, world, *arguments), "")
            except BaseException:
                answer = (None, traceback.format_exc())
            pipe.send_bytes(pickle.dumps(answer))

    return serve


class Pools:
    """The pools of a test session, by size and environment; started when first asked for."""

    def __init__(self) -> None:
        self.pools: dict[tuple[int, Sequence[tuple[str, str]]], WorkerPool] = {}

    def of(self, world: int, **environment: str) -> WorkerPool:
        key = (world, tuple(sorted(environment.items())))
        if key not in self.pools or not self.pools[key].alive:
            self.pools[key] = WorkerPool(world, environment)
        return self.pools[key]

    def close(self) -> None:
        for pool in self.pools.values():
            if pool.alive:
                pool.close()
