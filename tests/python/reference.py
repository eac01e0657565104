"""What reductions must give: slow and obvious, written apart from the backend.

Integers by numpy (torch has no arithmetic for most unsigned ones), floating point by torch in the order of the ranks,
in float32 for 16-bit types with one rounding at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

BOOLEAN = [torch.bool]
INTEGERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
NUMBERS = [*BOOLEAN, *INTEGERS, *FLOATS, *COMPLEX]
# They move, and are not reduced.
OTHERS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex32]

Op = dist.ReduceOp
ARITHMETIC = [Op.SUM, Op.PRODUCT]
ORDER = [Op.MIN, Op.MAX]
BITS = [Op.BAND, Op.BOR, Op.BXOR]
# What each rank's tensor is multiplied by, in PREMUL_SUM. The first is no value of any binary type.
FACTORS = [0.1, -1.0, 3.0, 0.5]
WHOLE_FACTORS = [2.0, 1.0, 0.0, 3.0]


def ops_of(dtype: torch.dtype) -> list[Any]:
    """The reductions that mean something on `dtype`; "PREMUL_SUM" stands for one with factors_of()."""
    if dtype in BOOLEAN:
        return [*ARITHMETIC, *ORDER, *BITS]
    if dtype in INTEGERS:
        return [*ARITHMETIC, Op.AVG, *ORDER, *BITS, "PREMUL_SUM"]
    if dtype in FLOATS:
        return [*ARITHMETIC, Op.AVG, *ORDER, "PREMUL_SUM"]
    return [Op.SUM, Op.AVG, "PREMUL_SUM"]  # torch refuses the product of complex numbers


def factors_of(dtype: torch.dtype) -> list[float]:
    return WHOLE_FACTORS if dtype in INTEGERS else FACTORS


@functools.lru_cache(maxsize=2000)
def random_values(rank: int, count: int, dtype: torch.dtype, special: bool = False) -> torch.Tensor:
    """Different on every rank, the same at every call: not to be written to.

    Integers over their whole range; floating point around 1, with NaNs, infinities, zeros and the smallest numbers
    among them if `special`.
    """
    generator = torch.Generator().manual_seed(1000 * rank + count)
    if dtype in BOOLEAN:
        return torch.randint(0, 2, (count,), generator=generator, dtype=torch.uint8).bool()
    if dtype in INTEGERS or dtype in OTHERS:
        bytes_ = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
        return bytes_.view(dtype)
    real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    values = torch.randn(2, count, generator=generator, dtype=torch.float64).to(real)
    if special and count:
        choice = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-42, 3.0], dtype=real)
        where = torch.randint(0, 21, (2, count), generator=generator)
        values = torch.where(where < len(choice), choice[where.clamp(max=len(choice) - 1)], values)
    if dtype in COMPLEX:
        return torch.complex(values[0], values[1])
    return values[0].to(dtype)


def counted_values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Cheap ones for large tensors, small enough that no sum rounds."""
    return ((torch.arange(count, dtype=torch.int32) * (2 * rank + 3)) % 61 - 30).to(dtype)


def reduced(op: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    """`op` over the ranks' inputs, in their order."""
    dtype = inputs[0].dtype
    if dtype in BOOLEAN:
        return _reduced_truths(op, inputs)
    if dtype in INTEGERS:
        return _reduced_integers(op, [tensor.numpy() for tensor in inputs])
    wide = torch.float32 if dtype in HALVES else dtype
    columns = [tensor.to(wide) for tensor in inputs]
    if op == "PREMUL_SUM":
        columns = [times(column, factor) for column, factor in zip(columns, FACTORS, strict=False)]
    combine = {Op.PRODUCT: torch.mul, Op.MIN: earlier_minimum, Op.MAX: earlier_maximum}.get(op, torch.add)
    result = columns[0]
    for column in columns[1:]:
        result = combine(result, column)
    if op == Op.AVG:
        result = by_parts(result, lambda parts: parts / len(inputs))
    return result.to(dtype)


def earlier_minimum(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """As torch.minimum; of equal values, zeros of either sign, the first one's."""
    result = torch.where((other < one) | (other.isnan() & ~one.isnan()), other, one)
    assert torch.equal(result.nan_to_num(7), torch.minimum(one, other).nan_to_num(7))
    return result


def earlier_maximum(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return -earlier_minimum(-one, -other)


def times(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The factor is rounded to the tensor's type first."""
    return by_parts(tensor, lambda parts: parts * torch.tensor(factor, dtype=parts.dtype))


def by_parts(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Applies `change` to real and imaginary parts: torch scales complex numbers in more steps than that."""
    if tensor.is_complex():
        return torch.view_as_complex(change(torch.view_as_real(tensor)))
    return change(tensor)


def _reduced_truths(op: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    combine = torch.logical_or
    if op in (Op.PRODUCT, Op.MIN, Op.BAND):
        combine = torch.logical_and
    if op == Op.BXOR:
        combine = torch.logical_xor
    result = inputs[0]
    for other in inputs[1:]:
        result = combine(result, other)
    return result


def _reduced_integers(op: Any, inputs: list[np.ndarray[Any, Any]]) -> torch.Tensor:
    kind = inputs[0].dtype
    with np.errstate(over="ignore"):
        if op == Op.AVG:
            wide = np.dtype(np.uint64 if kind.kind == "u" else np.int64)
            total = np.zeros(inputs[0].shape, dtype=wide)
            for one in inputs:
                total = total + one.astype(wide)
            count = np.array(len(inputs), dtype=wide)
            quotient = total // count
            # Towards zero.
            quotient = quotient + ((total < 0) & (quotient * count != total)).astype(wide)
            return torch.from_numpy(quotient.astype(kind))
        if op == "PREMUL_SUM":
            inputs = [one * np.array(factor).astype(kind) for one, factor in zip(inputs, WHOLE_FACTORS, strict=False)]
        combine = {
            Op.PRODUCT: np.multiply,
            Op.MIN: np.minimum,
            Op.MAX: np.maximum,
            Op.BAND: np.bitwise_and,
            Op.BOR: np.bitwise_or,
            Op.BXOR: np.bitwise_xor,
        }.get(op, np.add)
        result = inputs[0]
        for one in inputs[1:]:
            result = combine(result, one)
    return torch.from_numpy(result)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, as if contiguous."""
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1)).view(torch.uint8)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal element by element; all NaNs are alike, and zeros differ by their signs."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype in (*FLOATS, *COMPLEX):
        one, other = (torch.view_as_real(t) if t.is_complex() else t for t in (one, other))
        nan = one.isnan()
        if not torch.equal(nan, other.isnan()):
            return False
        one, other = (torch.where(nan, 0, t) for t in (one, other))
    return torch.equal(bits(one), bits(other))


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
