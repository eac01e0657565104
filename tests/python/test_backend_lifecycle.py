"""Beginnings and ends: re-initialisation, exits without destroy, forked children, hooks, Work objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import closeranks
from interpreters import Interpreters
from worker_processes import Workers, start

Job = Callable[..., Workers]


INIT = """
import torch, torch.distributed as dist
dist.init_process_group("closeranks", init_method="file://{store}", rank={rank}, world_size={world})
"""


@pytest.mark.parametrize(
    "ending",
    [
        "dist.all_reduce(torch.ones(9))",
        "dist.all_reduce(torch.ones(3000000))",
        "dist.all_reduce(torch.ones(3000000), async_op=True)",
        "work = dist.all_reduce(torch.ones(9), async_op=True); work.get_future().then(lambda f: f.value())",
        "dist.barrier(); dist.destroy_process_group()",
        "group = dist.new_group(); dist.all_reduce(torch.ones(9), group=group); import sys; sys.exit(0)",
    ],
)
def test_the_interpreter_ends_cleanly_right_after(interpreters: Interpreters, tmp_path: Path, ending: str) -> None:
    for result in interpreters.run(tmp_path, INIT + ending + "\n"):
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        assert "terminate" not in result.stderr


def test_an_exception_ends_a_worker_with_its_traceback(interpreters: Interpreters, tmp_path: Path) -> None:
    text = INIT + "dist.barrier()\nif {rank} == 1:\n    raise ValueError('on purpose')\ndist.barrier()\n"
    results = interpreters.run(tmp_path, text, 3)
    assert results[1].returncode == 1
    assert "ValueError: on purpose" in results[1].stderr
    for rank in (0, 2):
        assert results[rank].returncode == 1
        assert "PeerLost" in results[rank].stderr
        assert "rank 1" in results[rank].stderr


def test_torch_finds_the_backend_without_an_import(interpreters: Interpreters, tmp_path: Path) -> None:
    text = INIT + "t = torch.ones(1); dist.all_reduce(t); assert t.item() == 2; print(dist.get_backend())\n"
    for result in interpreters.run(tmp_path, text):
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == "closeranks"


def test_initialising_again_with_other_ranks(tmp_path: Path) -> None:
    def body(rank: int, world: int) -> None:
        for turn in range(3):
            mine = (rank + turn) % world
            dist.init_process_group(
                "closeranks", init_method=f"file://{tmp_path}/store{turn}", rank=mine, world_size=world
            )
            tensor = torch.tensor([float(mine)])
            dist.all_reduce(tensor)
            assert tensor.item() == sum(range(world))
            parts = [torch.empty(1) for _ in range(world)]
            dist.all_gather(parts, torch.tensor([float(mine)]))
            assert [int(p.item()) for p in parts] == list(range(world))
            dist.barrier()
            dist.destroy_process_group()

    start(body, 3).values()


def test_data_loaders_may_fork(job: Job) -> None:
    def body(_rank: int, world: int) -> None:
        dataset = TensorDataset(torch.arange(64.0))
        for _ in range(2):
            total = torch.zeros(1)
            for (batch,) in DataLoader(dataset, batch_size=8, num_workers=2):
                total += batch.sum()
                dist.all_reduce(batch)
            assert total.item() == 64 * 63 / 2
        dist.barrier()
        assert world == 2

    job(body, 2).values()


def test_a_forked_child_is_told_to_keep_out(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        dist.barrier()

        def child(_rank: int, _world: int) -> str:
            with pytest.raises(closeranks.Closed, match="fork of a closeranks worker"):
                dist.all_reduce(torch.ones(2))
            return "kept out"

        assert start(child, 1).values(20) == ["kept out"]
        dist.barrier()

    job(body, 2).values()


def test_work_and_its_future(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        tensor = torch.full((2000,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        assert isinstance(work, closeranks.Work)
        future = work.get_future()
        doubled = future.then(lambda f: f.value()[0] * 2)
        work.wait()
        assert future.done()
        assert work.is_completed()
        assert work.is_success()
        assert future.value()[0].data_ptr() == tensor.data_ptr()
        assert torch.equal(doubled.wait(), tensor * 2)
        assert work.contributors() == list(range(world))
        assert closeranks.last_contributors() == list(range(world))
        assert torch.equal(work.result()[0], tensor)

        late = dist.all_reduce(torch.ones(1), async_op=True)
        assert late is not None
        late.wait()
        assert late.get_future().value()[0].item() == world

    job(body, 3).values()


def test_an_op_nobody_waits_for_is_done_by_the_engine(job: Job) -> None:
    def body(_rank: int, _world: int) -> None:
        for count in (4, 2_000_000):
            work = dist.all_reduce(torch.ones(count), async_op=True)
            assert work is not None
            deadline = time.monotonic() + 20
            while not work.is_completed():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            work.wait()

    job(body, 2).values()


def test_contributors_are_known_only_when_done(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        if rank == 0:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            assert isinstance(work, closeranks.Work)
            with pytest.raises(closeranks.InvalidCall, match="wait"):
                work.contributors()
            dist.new_group([0])  # nothing but time
            time.sleep(0.2)
            work.wait()
            assert work.contributors() == list(range(world))
        else:
            time.sleep(0.5)
            dist.all_reduce(torch.ones(4))
            dist.new_group([0])

    job(body, 2).values()


def test_the_recorder_sees_ops_complete(job: Job) -> None:
    def body(_rank: int, _world: int) -> list[str]:
        for _ in range(3):
            dist.all_reduce(torch.ones(5))
        import pickle  # noqa: PLC0415

        dump = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(backend="closeranks"))
        return [entry["state"] for entry in dump["entries"]]

    for states in job(body, 2).values():
        assert states == ["completed"] * 3


def test_recent_ops_and_present(job: Job) -> None:
    def body(_rank: int, world: int) -> None:
        before = time.time()
        dist.all_reduce(torch.ones(1000))
        dist.barrier()
        reduce, barrier = closeranks.recent_ops()
        assert (reduce.kind, barrier.kind) == ("all_reduce", "barrier")
        assert reduce.bytes == 4000
        assert reduce.sequence < barrier.sequence
        # Small ops are dated by a clock that ticks every few milliseconds.
        assert before - 0.02 <= reduce.time <= barrier.time + 0.02 <= time.time() + 0.04
        assert reduce.contributors == list(range(world))
        assert closeranks.present() == list(range(world))

    job(body, 3).values()


def test_timeouts_can_be_changed(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        world_group = dist.group.WORLD
        assert world_group is not None
        world_group.set_timeout(timedelta(seconds=1))
        dist.barrier()
        if rank == 0:
            started = time.monotonic()
            with pytest.raises(closeranks.Timeout):
                dist.all_reduce(torch.ones(1))
            assert 0.5 < time.monotonic() - started < 10
        else:
            time.sleep(2.5)

    job(body, 2).values()


def test_policies(job: Job) -> None:
    def body(_rank: int, _world: int) -> None:
        dist.barrier()
        closeranks.set_policy(None, "fail")
        with pytest.raises(closeranks.Error, match="repair"):
            closeranks.set_policy(None, "repair")  # a plain job has fixed members
        assert not closeranks.job_is_coordinated()
        dist.barrier()

    job(body, 2).values()
