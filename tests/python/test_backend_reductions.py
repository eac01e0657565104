"""Every reduction on every type: against a reference (bits), against float64 and Gloo (closeness), at several sizes.

Each test runs many cases in one job (worker_pool.py). The bodies return a digest of all results, which must be the same
on all ranks that got the same result, and the same again when the body is run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference import (
    COMPLEX,
    FLOATS,
    HALVES,
    INTEGERS,
    NUMBERS,
    Op,
    bits,
    counted_values,
    factors_of,
    in_float64,
    ops_of,
    random_values,
    reduced,
    same_bits,
)
from worker_pool import Pools

# In a descriptor; a vector and its tail; some blocks, the last one short; divisible by no number of ranks. Large ones
# have a test of their own.
COUNTS = (1, 13, 500, 20_011)


def torch_op(op: Any, rank: int, dtype: torch.dtype) -> Any:
    if op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(factors_of(dtype)[rank])
    return op


def check(result: torch.Tensor, op: Any, inputs: list[torch.Tensor], case: object, special: bool = False) -> None:
    expected = reduced(op, inputs)
    assert same_bits(result, expected), (case, result, expected)
    # In float64 too, which has no infinity yet where float32 has one.
    if result.dtype in (*FLOATS, *COMPLEX) and op != "PREMUL_SUM" and not special:
        tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float64: 1e-12, torch.complex128: 1e-12}
        close = tolerance.get(result.dtype, 1e-5)
        exact = reduced(op, [in_float64(tensor) for tensor in inputs])
        torch.testing.assert_close(in_float64(result), exact, rtol=close, atol=close, equal_nan=True, msg=str(case))


def cases(dtypes: list[torch.dtype]) -> Iterator[tuple[torch.dtype, Any, int]]:
    for dtype in dtypes:
        for op in ops_of(dtype):
            for count in COUNTS:
                yield dtype, op, count


class Digest:
    """Of all results so far."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def add(self, tensor: torch.Tensor) -> None:
        self.hash.update(bits(tensor).numpy().data)

    def __str__(self) -> str:
        return self.hash.hexdigest()


def all_reduce(rank: int, world: int, special: bool) -> str:
    digest = Digest()
    for number, (dtype, op, count) in enumerate(cases(FLOATS if special else NUMBERS)):
        tensor = random_values(rank, count, dtype, special).clone()
        dist.all_reduce(tensor, op=torch_op(op, rank, dtype))
        digest.add(tensor)
        if number % world == rank:  # the digests say that the others have the same
            inputs = [random_values(r, count, dtype, special) for r in range(world)]
            check(tensor, op, inputs, (dtype, op, count), special)
    return str(digest)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_reduce(pools: Pools, world: int) -> None:
    pool = pools.of(world)
    first = pool.run(all_reduce, False)
    assert len(set(first)) == 1, "results differ between ranks"
    assert pool.run(all_reduce, False) == first, "results differ between runs"


@pytest.mark.parametrize("world", [1, 2, 4])
def test_nans_infinities_zeros_and_subnormals(pools: Pools, world: int) -> None:
    assert len(set(pools.of(world).run(all_reduce, True))) == 1


def reduce_and_scatter(rank: int, world: int) -> None:
    for number, (dtype, op, count) in enumerate(cases(NUMBERS)):
        case = (dtype, op, count)
        inputs = [random_values(r, count, dtype) for r in range(world)]
        root = number % world
        tensor = inputs[rank].clone()
        dist.reduce(tensor, root, op=torch_op(op, rank, dtype))
        if rank == root:
            check(tensor, op, inputs, case)
        else:
            assert same_bits(tensor, inputs[rank]), (case, "only the root's tensor changes")

        wholes = [random_values(r, count * world, dtype) for r in range(world)]
        part = torch.empty(count, dtype=dtype)
        mine = [whole[rank * count : (rank + 1) * count].clone() for whole in wholes]
        dist.reduce_scatter_tensor(part, wholes[rank].clone(), op=torch_op(op, rank, dtype))
        check(part, op, mine, case)
        # In place: the output is the input's own part. And the list form.
        whole = wholes[rank].clone()
        dist.reduce_scatter_tensor(whole[rank * count : (rank + 1) * count], whole, op=torch_op(op, rank, dtype))
        assert same_bits(whole[rank * count : (rank + 1) * count], part), case
        again = torch.empty(count, dtype=dtype)
        dist.reduce_scatter(again, list(wholes[rank].clone().split(count)), op=torch_op(op, rank, dtype))
        assert same_bits(again, part), case


@pytest.mark.parametrize("world", [1, 2, 4])
def test_reduce_and_reduce_scatter(pools: Pools, world: int) -> None:
    pools.of(world).run(reduce_and_scatter)


def coalesced(rank: int, world: int) -> None:
    for dtype in [torch.int16, *HALVES, torch.float32, torch.complex64]:
        for op in ops_of(dtype):
            counts = (3, 1000, 1, 0, 17)
            inputs = [[random_values(r, n, dtype) for n in counts] for r in range(world)]
            tensors = [tensor.clone() for tensor in inputs[rank]]
            with dist._coalescing_manager():
                for tensor in tensors:
                    dist.all_reduce(tensor, op=torch_op(op, rank, dtype))
            for place, tensor in enumerate(tensors):
                check(tensor, op, [one[place] for one in inputs], (dtype, op, place))

            wholes = [[random_values(r, n * world, dtype) for n in counts] for r in range(world)]
            parts = [torch.empty(n, dtype=dtype) for n in counts]
            with dist._coalescing_manager():
                for part, whole in zip(parts, wholes[rank], strict=True):
                    dist.reduce_scatter_tensor(part, whole.clone(), op=torch_op(op, rank, dtype))
            for place, (n, part) in enumerate(zip(counts, parts, strict=True)):
                check(part, op, [one[place][rank * n : (rank + 1) * n] for one in wholes], (dtype, op, place))


@pytest.mark.parametrize("world", [1, 3])
def test_coalesced(pools: Pools, world: int) -> None:
    pools.of(world).run(coalesced)


def beside_gloo(rank: int, world: int) -> int:
    """Wherever Gloo has the reduction; it says so before it moves anything, on all ranks alike."""
    gloo = dist.new_group(backend="gloo")
    compared = 0
    for dtype, op, count in cases(NUMBERS):
        if op == "PREMUL_SUM":
            continue
        own = random_values(rank, count, dtype)
        theirs = own.clone()
        try:
            dist.all_reduce(theirs, op=op, group=gloo)
        except (RuntimeError, ValueError):
            continue
        ours = own.clone()
        dist.all_reduce(ours, op=op)
        if dtype in (*FLOATS, *COMPLEX):
            # Gloo adds in another order, and halves in their own type.
            close = 6e-2 if dtype in HALVES else 1e-5
            torch.testing.assert_close(ours, theirs, rtol=close, atol=close, equal_nan=True)
        else:
            assert torch.equal(ours, theirs), (dtype, op, count)
        compared += 1
    dist.destroy_process_group(gloo)
    return compared


@pytest.mark.parametrize("world", [2, 4])
def test_beside_gloo(pools: Pools, world: int) -> None:
    compared = pools.of(world).run(beside_gloo)
    assert len(set(compared)) == 1
    assert compared[0] > 60


def large(rank: int, world: int, in_place: bool) -> str:
    """Longer than a piece of the staging pool, and not aligned to anything; in shared memory, if asked."""
    from closeranks import _closeranks  # noqa: PLC0415 - in the worker

    digest = Digest()
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.complex128):
        count = 20_000_003 // dtype.itemsize
        memory = counted_values(rank, count + 3, dtype)
        assert _closeranks.in_shared_memory(memory) == in_place
        for start in (0, 3):
            inputs = [counted_values(r, count + 3, dtype)[start : start + count] for r in range(world)]
            tensor = memory.clone()[start : start + count]
            dist.all_reduce(tensor)
            assert torch.equal(tensor, sum(inputs[1:], start=inputs[0])), (dtype, start)
            digest.add(tensor)
            tensor = memory.clone()[start : start + count]
            dist.reduce(tensor, world - 1)
            expected = sum(inputs[1:], start=inputs[0]) if rank == world - 1 else inputs[rank]
            assert torch.equal(tensor, expected), (dtype, start)
    return str(digest)


@pytest.mark.parametrize("shared", ["0", "1"])
def test_large_tensors(pools: Pools, shared: str) -> None:
    digests = pools.of(2, CLOSERANKS_SHARED_ARENAS=shared).run(large, shared == "1")
    assert len(set(digests)) == 1


def odd_shapes(rank: int, world: int) -> None:
    total = sum(r + 1 for r in range(world))

    scalar = torch.tensor(float(rank + 1))
    dist.all_reduce(scalar)
    assert scalar.item() == total

    for empty in (torch.empty(0), torch.empty(3, 0, 2)):
        dist.all_reduce(empty)
        dist.reduce(empty, world - 1)
        dist.reduce_scatter_tensor(empty, empty.clone())

    base = torch.zeros(6, 40)
    strided = base[:, ::2]
    strided.fill_(rank + 1)
    dist.all_reduce(strided)
    assert torch.equal(base[:, ::2], torch.full((6, 20), float(total)))
    assert not base[:, 1::2].any()
    dist.reduce(strided, 0)
    assert torch.equal(base[:, ::2], torch.full((6, 20), float(total * world if rank == 0 else total)))
    assert not base[:, 1::2].any()

    transposed = (torch.arange(12.0).reshape(3, 4) * (rank + 1)).t()
    dist.all_reduce(transposed)
    assert torch.equal(transposed, (torch.arange(12.0).reshape(3, 4) * total).t())

    last = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last) * (rank + 1)
    dist.all_reduce(last)
    assert torch.equal(last, torch.full((2, 3, 4, 4), float(total)))

    scattered = torch.zeros(5, 8)[:, ::2]
    dist.reduce_scatter_tensor(scattered, (torch.arange(20.0 * world).reshape(4, 5 * world) * (rank + 1)).t())
    expected = (torch.arange(20.0 * world).reshape(4, 5 * world) * total).t()
    assert torch.equal(scattered, expected[rank * 5 : (rank + 1) * 5])

    with torch.inference_mode():
        inference = torch.zeros(4, 6)[:, ::3]
        inference.fill_(rank + 1)
        dist.all_reduce(inference)
        assert torch.equal(inference, torch.full((4, 2), float(total)))

    leaf = torch.full((3,), float(rank + 1), requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    assert torch.equal(leaf.detach(), torch.full((3,), float(total)))

    factor = torch.tensor([0.25], dtype=torch.float64)
    tensor = torch.full((5,), float(rank + 1))
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
    assert torch.equal(tensor, torch.full((5,), total / 4))


@pytest.mark.parametrize("world", [1, 3])
def test_odd_shapes(pools: Pools, world: int) -> None:
    pools.of(world).run(odd_shapes)


def unsigned_types_are_not_signed(rank: int, world: int) -> None:
    for dtype in INTEGERS:
        largest = torch.iinfo(dtype).max
        values = torch.tensor([largest if rank == 0 else 1, 1 if rank == 0 else 2], dtype=dtype)
        dist.all_reduce(values, op=Op.MAX)
        assert values.tolist() == [largest, 2 if world > 1 else 1]


def test_unsigned_types_are_not_signed(pools: Pools) -> None:
    pools.of(2).run(unsigned_types_are_not_signed)
