"""What a caller sees when an op cannot succeed: deaths in a plain job, wrong calls, exits at odd moments."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.nn.parallel import DistributedDataParallel

import closeranks
from worker_processes import Workers

Job = Callable[..., Workers]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


@pytest.mark.parametrize("count", [1, 3_000_000])
def test_a_death_is_the_named_error_on_every_survivor(job: Job, count: int) -> None:
    def body(rank: int, _world: int) -> None:
        tensor = torch.ones(count)
        for _ in range(5):
            dist.all_reduce(tensor)
        if rank == 2:
            die()
        while True:
            dist.all_reduce(tensor)

    started = job(body, 4)
    outcomes = started.finish()
    for rank in (0, 1, 3):
        error = outcomes[rank].error
        assert isinstance(error, closeranks.PeerLost), outcomes[rank].trace
        assert isinstance(error, dist.DistBackendError)
        assert "rank 2" in first_line(error)
        assert error.slot == 2
        assert error.op is not None
        assert error.op.startswith("all_reduce")
        assert error.group == "world"
        assert error.sequence is not None
        assert error.move == "repair_group"
    assert outcomes[2].exit_code == -signal.SIGKILL


def test_a_group_that_lost_a_member_fails_at_once_ever_after(job: Job) -> None:
    def body(rank: int, _world: int) -> float:
        pair = dist.new_group([0, 1])
        dist.barrier()
        if rank == 2:
            die()
        with pytest.raises(closeranks.PeerLost):
            dist.barrier()
        started = time.monotonic()
        for _ in range(3):
            with pytest.raises(closeranks.PeerLost, match="rank 2"):
                dist.all_reduce(torch.ones(1))
        waited = time.monotonic() - started
        # Another group, without the lost member, goes on.
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 2
        # destroy_process_group of the broken group does not hang: the wrapper calls it next.
        return waited

    outcomes = job(body, 3).finish()
    for rank in (0, 1):
        assert outcomes[rank].error is None, outcomes[rank].trace
        assert outcomes[rank].value < 5


def test_error_inside_backward_keeps_its_class_and_facts(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        model = DistributedDataParallel(nn.Linear(64, 64))
        loss = model(torch.ones(4, 64)).sum()
        if rank == 1:
            die()
        try:
            loss.backward()
        except closeranks.PeerLost as error:
            assert "rank 1" in first_line(error)
            assert (error.slot, error.group) == (1, "world")
            assert error.op is not None
            assert error.op.startswith("all_reduce")
            assert error.move == "repair_group"
        else:
            raise AssertionError("backward() raised nothing")

    outcomes = job(body, 3).finish()
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].trace


def test_error_through_a_future(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        dist.barrier()
        if rank == 1:
            die()
        work = dist.all_reduce(torch.ones(9), async_op=True)
        assert work is not None
        seen: list[str] = []

        def look(future: torch.futures.Future[list[torch.Tensor]]) -> None:
            try:
                future.value()
            except closeranks.PeerLost as error:
                seen.append(first_line(error))

        chained = work.get_future().then(look)
        with pytest.raises(closeranks.PeerLost, match="rank 1"):
            work.get_future().wait()
        chained.wait()
        assert len(seen) == 1
        assert "rank 1" in seen[0]
        with pytest.raises(closeranks.PeerLost):
            work.wait()
        assert work.is_completed()

    outcomes = job(body, 2).finish()
    assert outcomes[0].error is None, outcomes[0].trace


def test_the_health_of_a_group_after_a_death(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        dist.barrier()
        assert backend.get_error() == ErrorType.SUCCESS
        if rank == 1:
            die()
        with pytest.raises(closeranks.PeerLost):
            dist.barrier()
        assert backend.get_error() != ErrorType.SUCCESS

    outcomes = job(body, 2).finish()
    assert outcomes[0].error is None, outcomes[0].trace


def test_a_receive_from_a_dead_rank(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        dist.barrier()
        if rank == 1:
            die()
        with pytest.raises(closeranks.PeerLost, match="rank 1"):
            dist.recv(torch.empty(3), 1)

    outcomes = job(body, 3).finish()
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].trace


def test_a_timeout_names_who_has_not_come(job: Job) -> None:
    def body(rank: int, world: int) -> str:
        dist.barrier()
        message = ""
        if rank != 1:
            with pytest.raises(closeranks.Timeout) as caught:
                dist.all_reduce(torch.ones(4))
            message = first_line(caught.value)
        else:
            time.sleep(4)
        return message

    values = job(body, 3, timeout=2.0).values()
    assert "rank 1" in values[0]
    assert "rank 1" in values[2]


def test_members_that_call_differently_hear_of_it(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        with pytest.raises(closeranks.Mismatch) as caught:
            dist.all_reduce(torch.ones(4 if rank == 0 else 5))
        assert caught.value.move == "fix_call"

    job(body, 2).values()


def test_sizes_of_an_all_to_all_that_do_not_fit(job: Job) -> None:
    def body(rank: int, _world: int) -> str:
        # Rank 0 sends 3 to rank 1, which wants 4.
        sizes = ([2, 1], [2, 3]) if rank == 0 else ([4, 1], [1, 4])
        with pytest.raises(closeranks.Mismatch) as caught:
            dist.all_to_all_single(torch.empty(sum(sizes[0])), torch.ones(sum(sizes[1])), *sizes)
        dist.barrier()  # the group goes on
        return first_line(caught.value)

    for text in job(body, 2).values():
        assert "12 bytes" in text
        assert "16" in text


def test_wrong_calls(job: Job) -> None:
    def body(_rank: int, world: int) -> None:
        def refused(kind: type[closeranks.Error], words: str, call: Callable[[], object]) -> None:
            with pytest.raises(kind, match=words) as caught:
                call()
            assert caught.value.move == "fix_call"

        invalid, unsupported = closeranks.InvalidCall, closeranks.Unsupported
        pg = dist.group.WORLD
        assert pg is not None
        refused(invalid, "share memory", lambda: dist.all_reduce(torch.ones(1).expand(4)))
        refused(invalid, "times 3 elements", lambda: dist.all_gather_into_tensor(torch.empty(7), torch.ones(3)))
        refused(
            invalid,
            "reduction max is not defined on complex64",
            lambda: pg.allreduce([torch.ones(2, dtype=torch.complex64)], max_options()).wait(),
        )
        refused(unsupported, "to_dense", lambda: dist.all_reduce(torch.ones(3).to_sparse()))
        refused(
            invalid,
            "premul_sum is not defined on bool",
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op=dist._make_nccl_premul_sum(2.0)),
        )
        refused(
            invalid,
            "one real number",
            lambda: dist.all_reduce(torch.ones(3), op=dist._make_nccl_premul_sum(torch.ones(1, dtype=torch.complex64))),
        )
        refused(invalid, "3 rows, which 2", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)))
        refused(
            invalid, "add up to its 4", lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1], [2, 2])
        )
        refused(
            invalid, "can be negative", lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [5, -1], [2, 2])
        )
        refused(invalid, "a scalar", lambda: dist.all_to_all_single(torch.tensor(1.0), torch.ones(2)))
        refused(invalid, "Float8", lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn)))
        refused(invalid, "'sometimes'", lambda: closeranks.set_policy(None, "sometimes"))  # type: ignore[arg-type]
        tensor = torch.ones(2)
        dist.all_reduce(tensor)  # none of these has disturbed the group
        assert tensor[0].item() == world

    def max_options() -> dist.AllreduceOptions:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        return options

    job(body, 2).values()


def test_tensors_of_other_devices_are_told_so(job: Job) -> None:
    def body(_rank: int, _world: int) -> None:
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
        with pytest.raises(closeranks.Unsupported, match="CPU tensors only"):
            backend.allreduce([torch.ones(2, device="meta")])

    job(body, 2).values()


def test_an_error_keeps_its_facts_between_processes() -> None:
    error = closeranks.PeerLost("rank 2 is gone", slot=2, worker=2, op="all_reduce", view=(1, 4), move="repair_group")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, closeranks.PeerLost)
    assert str(copy) == "rank 2 is gone"
    assert (copy.slot, copy.worker, copy.op, copy.view, copy.move) == (2, 2, "all_reduce", (1, 4), "repair_group")
    assert copy.host is None
