"""Every collective that moves data as it is, on every type: values, sizes, shapes, roots; beside Gloo where it can.

Each test runs many cases in one job (worker_pool.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference import NUMBERS, OTHERS, bits, counted_values, random_values
from worker_pool import Pools

DTYPES = [*NUMBERS, *OTHERS]
# In a descriptor; a few cache lines; several blocks, the last one short.
COUNTS = (1, 7, 3_001, 70_003)

WORLDS = pytest.mark.parametrize("world", [1, 2, 4])


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


def cases() -> Iterator[tuple[torch.dtype, int]]:
    for dtype in DTYPES:
        for count in COUNTS if dtype in (torch.float32, torch.uint8) else COUNTS[:3]:
            yield dtype, count


def broadcast(rank: int, world: int) -> None:
    for number, (dtype, count) in enumerate(cases()):
        root = number % world
        tensor = random_values(rank, count, dtype).clone()
        dist.broadcast(tensor, root)
        assert same_bytes(tensor, random_values(root, count, dtype)), (dtype, count, root)

    conjugate = torch.complex(torch.ones(5), torch.full((5,), float(rank + 1))).conj()
    options = dist.BroadcastOptions()
    options.rootRank = world - 1
    # Past the dispatcher, which would hand over a resolved copy and lose the result.
    dist.group.WORLD._get_backend(torch.device("cpu")).broadcast([conjugate], options).wait()  # type: ignore[union-attr]
    assert torch.equal(conjugate.resolve_conj(), torch.complex(torch.ones(5), torch.full((5,), -float(world))))


@WORLDS
def test_broadcast(pools: Pools, world: int) -> None:
    pools.of(world).run(broadcast)


def gathering(rank: int, world: int) -> None:
    for number, (dtype, count) in enumerate(cases()):
        case = (dtype, count)
        everything = [random_values(r, count, dtype) for r in range(world)]
        own = everything[rank]
        whole = torch.cat([part.view(torch.uint8) for part in everything]).view(dtype)

        parts = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(parts, own)
        assert all(same_bytes(part, expected) for part, expected in zip(parts, everything, strict=True)), case

        one = torch.empty_like(whole)
        dist.all_gather_into_tensor(one, own)
        assert same_bytes(one, whole), case

        in_place = torch.zeros(count * world * dtype.itemsize, dtype=torch.uint8).view(dtype)
        mine = in_place[rank * count : (rank + 1) * count]
        mine.view(torch.uint8).copy_(own.view(torch.uint8))
        dist.all_gather_into_tensor(in_place, mine)
        assert same_bytes(in_place, whole), case

        root = number % world
        gathered = [torch.empty_like(own) for _ in range(world)] if rank == root else None
        dist.gather(own, gathered, dst=root)
        for part, expected in zip(gathered or [], everything if gathered else [], strict=True):
            assert same_bytes(part, expected), case


@WORLDS
def test_gathering(pools: Pools, world: int) -> None:
    pools.of(world).run(gathering)


def scattering(rank: int, world: int) -> None:
    for number, (dtype, count) in enumerate(cases()):
        root = number % world
        everything = [random_values(r + 100 * root, count, dtype) for r in range(world)]
        part = torch.empty_like(everything[rank])
        dist.scatter(part, everything if rank == root else None, src=root)
        assert same_bytes(part, everything[rank]), (dtype, count, root)


@WORLDS
def test_scattering(pools: Pools, world: int) -> None:
    pools.of(world).run(scattering)


def all_to_all(rank: int, world: int) -> None:
    for dtype, count in cases():
        case = (dtype, count)
        # What s sends to r is its own for each pair.
        inputs = [random_values(10 * rank + r, count, dtype) for r in range(world)]
        expected = [random_values(10 * s + rank, count, dtype) for s in range(world)]
        outputs = [torch.empty_like(one) for one in inputs]
        dist.all_to_all(outputs, inputs)
        assert all(same_bytes(got, wanted) for got, wanted in zip(outputs, expected, strict=True)), case

        whole = torch.empty(count * world * dtype.itemsize, dtype=torch.uint8).view(dtype)
        dist.all_to_all_single(whole, torch.cat([one.view(torch.uint8) for one in inputs]).view(dtype))
        assert same_bytes(whole, torch.cat([one.view(torch.uint8) for one in expected]).view(dtype)), case


@WORLDS
def test_all_to_all(pools: Pools, world: int) -> None:
    pools.of(world).run(all_to_all)


def uneven(rank: int, world: int, rows_of: str) -> None:
    """`rows_of` names how many rows rank s sends to rank r."""
    rows: Callable[[int, int], int] = {
        "a few": lambda s, r: r + s,
        "one pair alone": lambda s, r: 5000 if (s, r) == (0, world - 1) else 0,
        "nothing": lambda _s, _r: 0,
        "all from one": lambda s, r: 1000 * (r + 1) if s == 0 else 0,
        "long and short": lambda s, r: 90_001 if (s + r) % 2 else 1,
    }[rows_of]
    for width, dtype in ((3, torch.float32), (1, torch.int8), (5, torch.complex128)):
        send = [rows(rank, r) for r in range(world)]
        receive = [rows(s, rank) for s in range(world)]
        inputs = [random_values(10 * rank + r, n * width, dtype).view(n, width) for r, n in enumerate(send)]
        expected = torch.cat(
            [random_values(10 * s + rank, n * width, dtype).view(n, width) for s, n in enumerate(receive)]
        )
        output = torch.empty(sum(receive), width, dtype=dtype)
        dist.all_to_all_single(output, torch.cat(inputs), receive, send)
        assert same_bytes(output, expected), (rows_of, dtype)
        parts = [torch.empty(n, width, dtype=dtype) for n in receive]
        dist.all_to_all(parts, inputs)
        assert same_bytes(torch.cat(parts), expected), (rows_of, dtype)


@pytest.mark.parametrize("rows_of", ["a few", "one pair alone", "nothing", "all from one", "long and short"])
def test_uneven_all_to_all(pools: Pools, rows_of: str) -> None:
    for world in (1, 2, 4):
        pools.of(world).run(uneven, rows_of)


def odd_shapes(rank: int, world: int) -> None:
    for empty in (torch.empty(0), torch.empty(world, 0, 3)):
        dist.broadcast(empty, 0)
        dist.all_gather([torch.empty_like(empty) for _ in range(world)], empty)
        dist.all_gather_into_tensor(torch.empty_like(empty), empty)
        dist.gather(empty, [torch.empty_like(empty) for _ in range(world)] if rank == 0 else None)
        dist.scatter(empty, [torch.empty_like(empty) for _ in range(world)] if rank == 0 else None)
        dist.all_to_all([torch.empty_like(empty) for _ in range(world)], [empty] * world)
        dist.all_to_all_single(torch.empty_like(empty), empty)

    scalar = torch.tensor(float(rank))
    scalars = [torch.tensor(-1.0) for _ in range(world)]
    dist.all_gather(scalars, scalar)
    assert [one.item() for one in scalars] == list(range(world))

    # Strided memory on either side, alone and in lists; what lies between stays.
    for count in (4, 9_000):
        own = torch.arange(2.0 * count).view(count, 2).t()[:, ::2] + 1000 * rank
        expected = [torch.arange(2.0 * count).view(count, 2).t()[:, ::2] + 1000 * r for r in range(world)]
        backing = torch.zeros(world, 2, count)
        strided = [backing[r][:, ::2] for r in range(world)]
        dist.all_gather(strided, own)
        assert all(torch.equal(got, wanted) for got, wanted in zip(strided, expected, strict=True))
        assert not backing[:, :, 1::2].any()

        backing.zero_()
        dist.all_to_all(strided, [own + r for r in range(world)])
        assert all(torch.equal(got, wanted + rank) for got, wanted in zip(strided, expected, strict=True))
        assert not backing[:, :, 1::2].any()

        table = (torch.arange(float(world * count)).view(count, world) + 1000 * rank).t()
        output = torch.zeros(world, 2 * count)[:, ::2]
        dist.all_to_all_single(output, table)
        assert torch.equal(
            output,
            torch.stack(
                [torch.arange(float(world * count)).view(count, world).t()[rank] + 1000 * s for s in range(world)]
            ),
        )

        tensor = torch.zeros(count, 4)[:, 1:3]
        tensor.fill_(rank + 1)
        dist.broadcast(tensor, world - 1)
        assert torch.equal(tensor, torch.full((count, 2), float(world)))

        part = torch.zeros(3, count).t()
        dist.scatter(part, [torch.full((count, 3), float(r)) for r in range(world)] if rank == 0 else None)
        assert torch.equal(part, torch.full((count, 3), float(rank)))

    # Output and input share memory in another way than in place: as if the input had been read first.
    shared = torch.arange(float(2 * world)) + 100 * rank
    dist.all_to_all_single(shared, shared)
    assert shared.tolist() == [100 * s + 2 * rank + i for s in range(world) for i in range(2)]


@pytest.mark.parametrize("world", [1, 3])
def test_odd_shapes(pools: Pools, world: int) -> None:
    pools.of(world).run(odd_shapes)


def coalesced(rank: int, world: int) -> None:
    counts = (2, 0, 700, 1)
    for dtype in (torch.int64, torch.bfloat16, torch.float8_e5m2):
        inputs = [random_values(rank + 10 * n, n, dtype) for n in counts]
        outputs = [torch.empty(n * world * dtype.itemsize, dtype=torch.uint8).view(dtype) for n in counts]
        with dist._coalescing_manager():
            for output, own in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, own)
        for n, output in zip(counts, outputs, strict=True):
            expected = [random_values(r + 10 * n, n, dtype).view(torch.uint8) for r in range(world)]
            assert same_bytes(output, torch.cat(expected).view(dtype)), (dtype, n)
        lists = [[torch.empty_like(own) for own in inputs] for _ in range(world)]
        dist.group.WORLD.allgather_coalesced(lists, inputs).wait()  # type: ignore[union-attr]
        for r in range(world):
            for n, got in zip(counts, lists[r], strict=True):
                assert same_bytes(got, random_values(r + 10 * n, n, dtype)), (dtype, n, r)


@pytest.mark.parametrize("world", [1, 3])
def test_coalesced(pools: Pools, world: int) -> None:
    pools.of(world).run(coalesced)


def large(rank: int, world: int, in_place: bool) -> None:
    """Longer than a piece of the staging pool; in shared memory, if asked."""
    from closeranks import _closeranks  # noqa: PLC0415 - in the worker

    count = 5_000_011
    own = counted_values(rank, count, torch.float32)
    assert _closeranks.in_shared_memory(own) == in_place
    everything = [counted_values(r, count, torch.float32) for r in range(world)]
    tensor = own.clone()
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, everything[1])
    whole = torch.empty(world * count)
    dist.all_gather_into_tensor(whole, own)
    assert torch.equal(whole, torch.cat(everything))
    gathered = [torch.empty(count) for _ in range(world)] if rank == 0 else None
    dist.gather(own, gathered)
    assert gathered is None or torch.equal(torch.cat(gathered), whole)
    part = torch.empty(count)
    dist.scatter(part, list(whole.split(count)) if rank == 0 else None)
    assert torch.equal(part, own)
    # A little more to one than to the other.
    cut = count // world + 17 * (1 if rank == 0 else -1)
    sizes = [[count // world + 17 * (1 if r == 0 else -1), 0] for r in range(world)]
    for r in range(world):
        sizes[r][1] = count - sizes[r][0]
    received = [sizes[s][rank] for s in range(world)]
    output = torch.empty(sum(received))
    dist.all_to_all_single(output, own, received, [cut, count - cut])
    expected = [everything[s][: sizes[s][0]] if rank == 0 else everything[s][sizes[s][0] :] for s in range(world)]
    assert torch.equal(output, torch.cat(expected))


@pytest.mark.parametrize("shared", ["0", "1"])
def test_large_tensors(pools: Pools, shared: str) -> None:
    pools.of(2, CLOSERANKS_SHARED_ARENAS=shared).run(large, shared == "1")


def beside_gloo(rank: int, world: int) -> list[str]:
    """What Gloo can do on this type; both results must be the same."""
    gloo = dist.new_group(backend="gloo")
    compared = []
    calls: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
        "broadcast": gloo_broadcast,
        "all_gather": gloo_all_gather,
        "all_to_all_single": gloo_all_to_all,
        "scatter": gloo_scatter,
    }
    for name, call in calls.items():
        for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64):
            own = random_values(rank, 60 * world, dtype)
            try:
                theirs = call(own.clone(), gloo)
            except (RuntimeError, ValueError):
                continue  # refused before anything moves, on all ranks alike
            assert same_bytes(call(own.clone(), dist.group.WORLD), theirs), (name, dtype)
            compared.append(name)
    dist.destroy_process_group(gloo)
    return sorted(set(compared))


def gloo_broadcast(own: torch.Tensor, group: Any) -> torch.Tensor:
    dist.broadcast(own, 1, group=group)
    return own


def gloo_all_gather(own: torch.Tensor, group: Any) -> torch.Tensor:
    whole = own.new_empty(own.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(whole, own, group=group)
    return whole


def gloo_all_to_all(own: torch.Tensor, group: Any) -> torch.Tensor:
    output = torch.empty_like(own)
    dist.all_to_all_single(output, own, group=group)
    return output


def gloo_scatter(own: torch.Tensor, group: Any) -> torch.Tensor:
    parts = list(own.chunk(dist.get_world_size()))
    part = torch.empty_like(parts[0])
    dist.scatter(part, parts if dist.get_rank() == 0 else None, group=group)
    return part


def test_beside_gloo(pools: Pools) -> None:
    for compared in pools.of(4).run(beside_gloo):
        assert compared == ["all_gather", "all_to_all_single", "broadcast", "scatter"]
