"""Large CPU tensors in the shared arena: torch's own features keep working on them, and they can be turned off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arena_checks
import jobs
from worker_processes import Workers

SCRIPT = str(Path(__file__).with_name("arena_checks.py"))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What each check said on each slot. One job for all of them: most of its time is the start of torch."""
    folder = tmp_path_factory.mktemp("arenas")
    job = jobs.run(folder, [SCRIPT, str(folder)], workers=2, flags=())
    assert job.status == 0, job.output  # tensors that were kept to the end are freed without a crash
    assert set(job.results) == {0, 1}, job.output
    return {slot: result["results"] for slot, result in job.results.items()}


@pytest.mark.parametrize("name", arena_checks.CHECKS)
def test_under_closeranks_run(checked: dict[int, dict[str, Any]], name: str) -> None:
    for slot, results in checked.items():
        outcome = results[name]
        if isinstance(outcome, dict):
            pytest.skip(outcome["skipped"])
        assert outcome is None, f"slot {slot}:\n{outcome}"


def where_large_tensors_are(rank: int, world: int) -> tuple[bool, int, float]:
    import torch  # noqa: PLC0415 - in the worker
    import torch.distributed as dist  # noqa: PLC0415

    from closeranks import _closeranks  # noqa: PLC0415

    tensor = torch.full((1 << 20,), float(rank + 1))
    dist.all_reduce(tensor)
    in_arena = _closeranks.in_shared_memory(tensor)
    return in_arena, _closeranks.shared_memory_usage()["capacity_bytes"], float(tensor.max())


@pytest.mark.parametrize(("setting", "wanted"), [(None, False), ("1", True), ("0", False), ("yes", False)])
def test_plain_jobs_share_only_when_asked(job: Callable[..., Workers], setting: str | None, wanted: bool) -> None:
    environment = {} if setting is None else {"CLOSERANKS_SHARED_ARENAS": setting}
    for in_arena, capacity, largest in job(where_large_tensors_are, 2, environment=environment).values():
        assert in_arena == wanted
        assert (capacity > 0) == wanted
        assert largest == 3


def two_groups_one_after_the_other(rank: int, world: int) -> None:
    import torch  # noqa: PLC0415 - in the worker
    import torch.distributed as dist  # noqa: PLC0415

    from closeranks import _closeranks  # noqa: PLC0415

    first = torch.ones(1 << 20)
    assert _closeranks.in_shared_memory(first)
    dist.destroy_process_group()
    assert not _closeranks.in_shared_memory(torch.ones(1 << 20)), "no engine, no arena"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("closeranks", store=store, rank=rank, world_size=world)
    second = torch.full((1 << 20,), 2.0)
    assert _closeranks.in_shared_memory(second)
    assert not _closeranks.in_shared_memory(first), "of another engine: its peers are gone"
    assert bool((first + second == 3).all())
    del first
    assert bool((second == 2).all())


def test_a_second_engine_has_an_arena_of_its_own(job: Callable[..., Workers]) -> None:
    environment = {"CLOSERANKS_SHARED_ARENAS": "1"}
    job(two_groups_one_after_the_other, 1, environment=environment).values()


def test_off_under_closeranks_run(tmp_path: Path) -> None:
    script = tmp_path / "off.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from closeranks import _closeranks\n"
        "dist.init_process_group('closeranks')\n"
        "tensor = torch.ones(1 << 20)\n"
        "dist.all_reduce(tensor)\n"
        "assert float(tensor.sum()) == 2 << 20\n"
        "assert not _closeranks.in_shared_memory(tensor)\n"
    )
    job = jobs.run(tmp_path, [str(script)], workers=2, flags=(), environment={"CLOSERANKS_SHARED_ARENAS": "0"})
    assert job.status == 0, job.output
