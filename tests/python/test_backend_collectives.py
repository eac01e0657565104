"""Every collective of the backend against what it must compute, on real worker processes of a plain job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from worker_processes import Workers

Job = Callable[..., Workers]

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]


def values_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, so that no reduction rounds or overflows; different on every rank and at every place."""
    numbers = (torch.arange(count, dtype=torch.float64) * 7 + rank * 3) % 4 + 1
    if dtype == torch.bool:
        return numbers % 2 == 0
    if dtype.is_complex:
        return torch.complex(numbers, 5 - numbers).to(dtype)
    return numbers.to(dtype)


def fold(op: dist.ReduceOp.RedOpType, inputs: list[torch.Tensor]) -> torch.Tensor:
    combine: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.AVG: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    result = inputs[0]
    for other in inputs[1:]:
        result = combine[op](result, other)
    if op != dist.ReduceOp.AVG:
        return result
    if result.is_complex():  # torch divides complex numbers in more steps than their parts
        return torch.view_as_complex(torch.view_as_real(result) / len(inputs))
    return result / len(inputs)


def test_all_reduce_of_every_type_and_reduction(job: Job) -> None:
    def body(rank: int, world: int) -> int:
        arithmetic = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT]
        order = [dist.ReduceOp.MIN, dist.ReduceOp.MAX]
        bits = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
        cases = [(d, o) for d in INTEGERS for o in arithmetic + order + bits]
        cases += [(d, o) for d in FLOATS for o in arithmetic + order + [dist.ReduceOp.AVG]]
        cases += [(d, o) for d in COMPLEX for o in [dist.ReduceOp.SUM, dist.ReduceOp.AVG]]
        checked = 0
        for dtype, op in cases:
            # One entry inside a descriptor, one of a few blocks, and one whose last block is short.
            for count in (1, 300, 20_001):
                tensor = values_of(rank, count, dtype)
                dist.all_reduce(tensor, op=op)
                expected = fold(op, [values_of(r, count, dtype) for r in range(world)])
                assert torch.equal(tensor, expected.to(dtype)), (dtype, op, count)
                checked += 1
        return checked

    assert job(body, 3).values() == [3 * (35 + 20 + 4)] * 3


def test_all_reduce_of_every_shape(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        total = sum(r + 1 for r in range(world))

        scalar = torch.tensor(float(rank + 1))
        dist.all_reduce(scalar)
        assert scalar.item() == total

        empty = torch.empty(0)
        dist.all_reduce(empty)
        assert empty.numel() == 0

        large = torch.full((5_000_000,), float(rank + 1))
        dist.all_reduce(large)
        assert torch.equal(large, torch.full_like(large, total))

        base = torch.zeros(6, 40)
        strided = base[:, ::2]
        strided.fill_(rank + 1)
        dist.all_reduce(strided)
        assert torch.equal(base[:, ::2], torch.full((6, 20), float(total)))
        assert not base[:, 1::2].any()

        transposed = (torch.arange(12.0).reshape(3, 4) * (rank + 1)).t()
        dist.all_reduce(transposed)
        assert torch.equal(transposed, (torch.arange(12.0).reshape(3, 4) * total).t())

        conjugate = torch.complex(torch.ones(5), torch.full((5,), float(rank + 1))).conj()
        options = dist.BroadcastOptions()
        options.rootRank = 1
        # Past the dispatcher, which would hand over a resolved copy and lose the result.
        dist.group.WORLD._get_backend(torch.device("cpu")).broadcast([conjugate], options).wait()  # type: ignore[union-attr]
        assert torch.equal(conjugate.resolve_conj(), torch.complex(torch.ones(5), torch.full((5,), -2.0)))

        with torch.inference_mode():
            inference = torch.zeros(4, 6)[:, ::3]
            inference.fill_(rank + 1)
            dist.all_reduce(inference)
            assert torch.equal(inference, torch.full((4, 2), float(total)))

        leaf = torch.full((3,), float(rank + 1), requires_grad=True)
        with torch.no_grad():
            dist.all_reduce(leaf)
        assert torch.equal(leaf.detach(), torch.full((3,), float(total)))

    job(body, 3).values()


def test_results_are_bitwise_identical_on_all_ranks(job: Job) -> None:
    def body(rank: int, world: int) -> bytes:
        torch.manual_seed(rank)
        tensor = torch.randn(100_003) * torch.logspace(-6, 6, 100_003)
        dist.all_reduce(tensor)
        return tensor.numpy().tobytes()

    results = job(body, 4).values()
    assert all(result == results[0] for result in results)


def test_coalesced(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        tensors = [torch.full((n,), float(rank + n)) for n in (3, 1000, 17)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        for n, tensor in zip((3, 1000, 17), tensors, strict=True):
            assert torch.equal(tensor, torch.full((n,), float(sum(r + n for r in range(world)))))

        inputs = [torch.full((2,), rank), torch.full((700,), rank + 10)]
        outputs = [torch.empty(2 * world, dtype=torch.int64), torch.empty(700 * world, dtype=torch.int64)]
        with dist._coalescing_manager():
            for output, own in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, own)
        assert torch.equal(outputs[0], torch.arange(world).repeat_interleave(2))
        assert torch.equal(outputs[1], torch.arange(world).repeat_interleave(700) + 10)

        wholes = [torch.arange(float(2 * world)), torch.arange(float(500 * world))]
        parts = [torch.empty(2), torch.empty(500)]
        with dist._coalescing_manager():
            for part, whole in zip(parts, wholes, strict=True):
                dist.reduce_scatter_tensor(part, whole)
        for part, whole in zip(parts, wholes, strict=True):
            assert torch.equal(part, whole.chunk(world)[rank] * world)

    job(body, 3).values()


def test_broadcast_from_every_root(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        for root in range(world):
            for dtype in [*INTEGERS, *FLOATS, *COMPLEX, torch.bool]:
                for count in (1, 5000):
                    tensor = values_of(rank, count, dtype)
                    dist.broadcast(tensor, root)
                    assert torch.equal(tensor, values_of(root, count, dtype))
        eight_bits = torch.full((9,), rank, dtype=torch.uint8).view(torch.float8_e4m3fn)
        dist.broadcast(eight_bits, 1)
        assert torch.equal(eight_bits.view(torch.uint8), torch.full((9,), 1, dtype=torch.uint8))

    job(body, 3).values()


def test_gathering(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        for count in (1, 30_000):
            own = torch.full((count, 2), float(rank))
            everything = torch.arange(float(world)).repeat_interleave(count)[:, None].expand(-1, 2)

            parts = [torch.empty(count, 2) for _ in range(world)]
            dist.all_gather(parts, own)
            assert torch.equal(torch.cat(parts), everything)

            backing = torch.zeros(world, count, 4)
            strided = [backing[r][:, ::2] for r in range(world)]
            dist.all_gather(strided, own)
            assert torch.equal(torch.cat(strided), everything)
            assert not backing[:, :, 1::2].any()

            whole = torch.empty(count * world, 2)
            dist.all_gather_into_tensor(whole, own)
            assert torch.equal(whole, everything)

            in_place = torch.zeros(count * world, 2)
            in_place.chunk(world)[rank].fill_(rank)
            dist.all_gather_into_tensor(in_place, in_place.chunk(world)[rank])
            assert torch.equal(in_place, everything)

            for root in range(world):
                gathered = [torch.empty(count, 2) for _ in range(world)] if rank == root else None
                dist.gather(own, gathered, dst=root)
                if gathered is not None:
                    assert torch.equal(torch.cat(gathered), everything)

    job(body, 3).values()


def test_scattering_and_reducing_to_one(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        for count in (2, 25_000):
            for root in range(world):
                part = torch.empty(count)
                parts = [torch.full((count,), float(r + root)) for r in range(world)] if rank == root else None
                dist.scatter(part, parts, src=root)
                assert torch.equal(part, torch.full((count,), float(rank + root)))

                tensor = torch.full((count,), float(rank + 1))
                dist.reduce(tensor, root)
                kept = sum(r + 1 for r in range(world)) if rank == root else rank + 1
                assert torch.equal(tensor, torch.full((count,), float(kept)))

            inputs = [torch.full((count,), float(rank + r)) for r in range(world)]
            expected = torch.full((count,), float(sum(r + rank for r in range(world))))
            output = torch.empty(count)
            dist.reduce_scatter(output, inputs)
            assert torch.equal(output, expected)
            dist.reduce_scatter_tensor(output, torch.cat(inputs), op=dist.ReduceOp.AVG)
            assert torch.equal(output, expected / world)

    job(body, 4).values()


def test_all_to_all(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        for count in (1, 20_000):
            inputs = [torch.full((count,), float(10 * rank + r)) for r in range(world)]
            outputs = [torch.empty(count) for _ in range(world)]
            dist.all_to_all(outputs, inputs)
            for r in range(world):
                assert torch.equal(outputs[r], torch.full((count,), float(10 * r + rank)))

            whole = torch.empty(count * world)
            dist.all_to_all_single(whole, torch.cat(inputs))
            assert torch.equal(whole, torch.cat(outputs))

        # Rank s sends r + s rows to rank r.
        send = [r + rank for r in range(world)]
        receive = [rank + s for s in range(world)]
        output = torch.empty(sum(receive), 3)
        dist.all_to_all_single(output, torch.full((sum(send), 3), float(rank)), receive, send)
        expected = torch.tensor([float(s) for s in range(world) for _ in range(rank + s)])
        assert torch.equal(output, expected[:, None].expand(-1, 3))

    job(body, 3).values()


def test_point_to_point(job: Job) -> None:
    def body(rank: int, world: int) -> None:
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

    job(body, 3).values()


def test_barriers_and_sequence_numbers(job: Job) -> None:
    def body(rank: int, world: int) -> int:
        dist.barrier()
        work = dist.barrier(async_op=True)
        assert work is not None
        work.wait()
        dist.monitored_barrier()
        return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()

    numbers = job(body, 3).values()
    assert len(set(numbers)) == 1
    assert numbers[0] >= 3


def test_object_collectives(job: Job) -> None:
    def body(rank: int, world: int) -> None:
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

    job(body, 3).values()


def test_subgroups(job: Job) -> None:
    def body(rank: int, world: int) -> None:
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

    job(body, 4).values()


def test_split_group(job: Job) -> None:
    def body(rank: int, world: int) -> None:
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

    job(body, 4).values()


def test_functional_collectives(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        import torch.distributed._functional_collectives as functional  # noqa: PLC0415

        group = dist.group.WORLD
        total = functional.all_reduce(torch.full((5,), float(rank)), "sum", group)
        assert torch.equal(total + 0, torch.full((5,), float(sum(range(world)))))
        whole = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
        assert torch.equal(whole + 0, torch.arange(float(world)).repeat_interleave(2))
        part = functional.reduce_scatter_tensor(torch.arange(float(2 * world)), "sum", 0, group)
        assert torch.equal(part + 0, torch.arange(float(2 * world)).chunk(world)[rank] * world)

    job(body, 3).values()


@pytest.mark.parametrize("world", [1, 2, 8])
def test_group_sizes(job: Job, world: int) -> None:
    def body(rank: int, size: int) -> None:
        for count in (1, 70_000):
            tensor = torch.full((count,), float(rank + 1))
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full((count,), float(size * (size + 1) // 2)))
        dist.barrier()

    job(body, world).values()
