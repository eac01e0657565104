"""Fixtures of the Python tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 - the first optimizer imports it, in a second: once here, not in each forked worker

from interpreters import Interpreters
from jobs import Running
from worker_pool import Pools
from worker_processes import Body, Workers, in_group, start


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Starts plain jobs: the fixture is called with a body (see worker_processes.Body) and the number of workers."""
    started: list[Workers] = []

    def run(
        body: Body, world: int = 4, *, backend: str = "closeranks", timeout: float = 30.0, **keywords: Any
    ) -> Workers:
        folder = tmp_path / f"job{len(started)}"
        folder.mkdir()
        workers = start(in_group(body, folder, backend, timeout), world, **keywords)
        started.append(workers)
        return workers

    yield run
    for workers in started:
        for process in workers.processes:
            if process.is_alive():
                process.kill()
                process.join()


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Plain jobs that outlive a test: ``pools.of(world).run(body)``."""
    all_pools = Pools()
    yield all_pools
    all_pools.close()


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Interpreters]:
    """Whole interpreters that run a script and end: ``interpreters.run(folder, text)``."""
    started = Interpreters()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def no_job_outlives_its_test() -> Iterator[None]:
    yield
    for job in Running.started:
        job.stop()
    Running.started.clear()
