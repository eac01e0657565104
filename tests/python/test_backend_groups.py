"""Point to point, barriers, objects, subgroups, splits, and torch's functional collectives, on a plain job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from worker_pool import Pools
from worker_processes import Workers


def point_to_point(rank: int, world: int) -> None:
    right, left = (rank + 1) % world, (rank - 1) % world
    for count in (1, 400_000):
        # Everybody sends first: a send must not wait in line behind the receive that feeds it.
        works = [dist.isend(torch.full((count,), float(rank)), right), dist.irecv(got := torch.empty(count), left)]
        for work in works:
            assert work is not None
            work.wait()
        assert torch.equal(got, torch.full((count,), float(left)))

    # Tags choose among messages, not their order.
    if rank == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
    elif rank == 1:
        second, first = torch.empty(1), torch.empty(1)
        requests = [dist.irecv(second, 0, tag=2), dist.irecv(first, 0, tag=1)]
        for request in requests:
            assert request is not None
            request.wait()
        assert (first.item(), second.item()) == (1.0, 2.0)

    ops = [
        dist.P2POp(dist.isend, torch.full((7,), rank), right),
        dist.P2POp(dist.irecv, batch := torch.empty(7, dtype=torch.int64), left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert torch.equal(batch, torch.full((7,), left))

    if rank == 0:
        seen = []
        for _ in range(world - 1):
            message = torch.empty(2)
            source = dist.recv(message)
            assert torch.equal(message, torch.full((2,), float(source)))
            seen.append(source)
        assert sorted(seen) == list(range(1, world))
    else:
        dist.send(torch.full((2,), float(rank)), 0)


@pytest.mark.parametrize("world", [2, 3])
def test_point_to_point(pools: Pools, world: int) -> None:
    pools.of(world).run(point_to_point)


def barriers_and_sequence_numbers(rank: int, world: int) -> int:
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()
    dist.monitored_barrier()
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()


def test_barriers_and_sequence_numbers(pools: Pools) -> None:
    numbers = pools.of(3).run(barriers_and_sequence_numbers)
    assert len(set(numbers)) == 1
    assert numbers[0] >= 3


def object_collectives(rank: int, world: int) -> None:
    mine = {"rank": rank, "data": "x" * (rank * 3000)}
    everything: list[Any] = [None] * world
    dist.all_gather_object(everything, mine)
    assert [o["rank"] for o in everything] == list(range(world))
    assert [len(o["data"]) for o in everything] == [r * 3000 for r in range(world)]

    gathered: list[Any] | None = [None] * world if rank == 1 else None
    dist.gather_object(mine, gathered, dst=1)
    if gathered is not None:
        assert [o["rank"] for o in gathered] == list(range(world))

    shared = [mine, rank] if rank == 2 else [None, None]
    dist.broadcast_object_list(shared, src=2)
    assert shared == [{"rank": 2, "data": "x" * 6000}, 2]

    part: list[Any] = [None]
    dist.scatter_object_list(part, [("for", r) for r in range(world)] if rank == 0 else None, src=0)
    assert part == [("for", rank)]

    nothing: list[Any] = [1] * world
    dist.all_gather_object(nothing, None)
    assert nothing == [None] * world


def test_object_collectives(pools: Pools) -> None:
    pools.of(3).run(object_collectives)


def subgroups(rank: int, world: int) -> None:
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    mine = even if rank % 2 == 0 else odd
    reversed_group = dist.new_group([3, 2, 1, 0], sort_ranks=False)
    for _ in range(3):
        tensor = torch.full((3000,), float(rank))
        dist.all_reduce(tensor, group=mine)
        assert torch.equal(tensor, torch.full((3000,), 2.0 if rank % 2 == 0 else 4.0))
        parts = [torch.empty(1) for _ in range(world)]
        dist.all_gather(parts, torch.tensor([float(rank)]), group=reversed_group)
        assert [int(p.item()) for p in parts] == [3, 2, 1, 0]
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, src=2 + rank % 2, group=mine)
    assert tensor.item() == 2 + rank % 2
    assert dist.get_group_rank(reversed_group, rank) == world - 1 - rank


def test_subgroups(pools: Pools) -> None:
    pools.of(4).run(subgroups)


def split_group(rank: int, world: int) -> None:
    group = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == (1.0 if rank < 2 else 5.0)
    lonely = dist.split_group(split_ranks=[[1, 2]])
    if rank in (1, 2):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=lonely)
        assert tensor.item() == 3.0
    else:
        assert lonely is None or lonely == dist.GroupMember.NON_GROUP_MEMBER


def test_split_group(pools: Pools) -> None:
    pools.of(4).run(split_group)


def functional_collectives(rank: int, world: int) -> None:
    import torch.distributed._functional_collectives as functional  # noqa: PLC0415

    group = dist.group.WORLD
    total = functional.all_reduce(torch.full((5,), float(rank)), "sum", group)
    assert torch.equal(total + 0, torch.full((5,), float(sum(range(world)))))
    whole = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    assert torch.equal(whole + 0, torch.arange(float(world)).repeat_interleave(2))
    part = functional.reduce_scatter_tensor(torch.arange(float(2 * world)), "sum", 0, group)
    assert torch.equal(part + 0, torch.arange(float(2 * world)).chunk(world)[rank] * world)


def test_functional_collectives(pools: Pools) -> None:
    pools.of(3).run(functional_collectives)


def sums_of_any_size(rank: int, world: int) -> None:
    for count in (1, 70_000):
        tensor = torch.full((count,), float(rank + 1))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((count,), float(world * (world + 1) // 2)))
    dist.barrier()


def test_eight_members_on_a_few_cores(job: Callable[..., Workers]) -> None:
    job(sums_of_any_size, 8).values()
