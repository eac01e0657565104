"""One process that is measured through torch.distributed: over closeranks, or over Gloo.

    python -m closeranks.bench.torch_worker closeranks|gloo

Started by the bench, whose commands it takes as the C++ processes do (tools/bench_loop.h); shapes and values are those
of tools/bench_shape.h. Gloo's processes use nothing of closeranks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from closeranks.bench import ddp_step as ddp

# What loopback TCP is fastest with; this machine's default may be far slower (bbr: a quarter of it).
FAST_CONGESTION = (b"cubic", b"reno")
# A member may leave these before the others have come: each run starts after a barrier (tools/bench_shape.h).
APART = ("reduce", "broadcast", "gather", "scatter")
# A product of two matrices this large takes some milliseconds: what a worker is busy with between two ops of a storm.
BUSY_SIDE = 768


@dataclass
class Shape:
    """Elements (float32) of one part, of the input and of the output; tools/bench_shape.h."""

    op: str
    unit: int
    inputs: int
    outputs: int
    in_place: bool = False


def shape_of(op: str, bytes_: int, ranks: int, rank: int) -> Shape:
    whole, part = -(-bytes_ // 4), -(-bytes_ // (4 * ranks))
    if op in ("all_reduce", "broadcast", "reduce"):
        return Shape(op, whole, whole, whole, in_place=True)
    if op in ("all_gather", "gather"):
        return Shape(op, part, part, part * ranks if op == "all_gather" or rank == 0 else 0)
    if op in ("scatter", "reduce_scatter"):
        return Shape(op, part, part * ranks if op == "reduce_scatter" or rank == 0 else 0, part)
    if op == "all_to_all":
        return Shape(op, part, part * ranks, part * ranks)
    return Shape(op, whole, whole, whole) if op == "send_recv" else Shape(op, 0, 0, 0)


def values(rank: int, start: int, count: int) -> torch.Tensor:
    return torch.arange(start, start + count).remainder_(7).add_(rank + 1).to(torch.float32)


def expected(shape: Shape, ranks: int, rank: int) -> torch.Tensor | None:
    """What the output must be; None: anything."""
    op, unit = shape.op, shape.unit
    if op in ("all_reduce", "reduce", "reduce_scatter"):
        if op == "reduce" and rank != 0:
            return None
        start = rank * unit if op == "reduce_scatter" else 0
        return torch.arange(start, start + unit).remainder_(7).mul_(ranks).add_(ranks * (ranks + 1) // 2).float()
    if op in ("all_gather", "gather"):
        return torch.cat([values(r, 0, unit) for r in range(ranks)]) if shape.outputs else None
    if op == "all_to_all":
        return torch.cat([values(r, rank * unit, unit) for r in range(ranks)])
    if op == "send_recv":
        return values(rank & ~1, 0, unit) if rank ^ 1 < ranks else None
    return values(0, rank * unit, unit) if op == "scatter" else values(0, 0, unit) if op == "broadcast" else None


def variants(op: str) -> list[str]:
    """Two calls of torch for some ops: one tensor, or a list."""
    return ["single", "list"] if op in ("all_gather", "reduce_scatter", "all_to_all") else ["single"]


def call_of(shape: Shape, inputs: torch.Tensor, outputs: torch.Tensor, variant: str) -> Callable[[], Any]:
    """The op as a function without arguments."""
    op, rank, ranks = shape.op, dist.get_rank(), dist.get_world_size()
    lists = variant == "list"
    input_parts = list(inputs.chunk(ranks)) if shape.inputs == shape.unit * ranks else []
    output_parts = list(outputs.chunk(ranks)) if shape.outputs == shape.unit * ranks else []
    if op == "send_recv":
        partner = rank ^ 1
        if partner >= ranks:
            return lambda: None

        def there_and_back() -> None:
            if rank % 2 == 0:
                dist.send(inputs, partner)
                dist.recv(outputs, partner)
            else:
                dist.recv(outputs, partner)
                dist.send(outputs, partner)

        return there_and_back
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(outputs),
        "reduce": lambda: dist.reduce(outputs, 0),
        "broadcast": lambda: dist.broadcast(outputs, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(outputs, inputs),
        "gather": lambda: dist.gather(inputs, output_parts or None, 0),
        "scatter": lambda: dist.scatter(outputs, input_parts or None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(outputs, inputs),
        "all_to_all": lambda: dist.all_to_all_single(outputs, inputs),
        "barrier": dist.barrier,
    }
    if lists:
        calls |= {
            "all_gather": lambda: dist.all_gather(output_parts, inputs),
            "reduce_scatter": lambda: dist.reduce_scatter(outputs, input_parts),
            "all_to_all": lambda: dist.all_to_all(output_parts, input_parts),
        }
    return calls[op]


@dataclass
class Prepared:
    """An op ready to run."""

    call: Callable[[], Any]
    ops_per_run: int
    apart: bool

    def one(self) -> float:
        """Seconds of one run."""
        if self.apart:
            dist.barrier()
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start


class Worker:
    """What is prepared, by its identity."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.prepared: dict[str, Prepared] = {}

    def prepare(self, identity: str, op: str, bytes_: str, memory: str, variant: str) -> str:
        del memory  # torch's own allocator says where tensors lie
        if op == "ddp":
            self.prepared[identity] = Prepared(ddp.training_step(int(bytes_), variant), 1, False)
            return "ok torch"
        shape = shape_of(op, int(bytes_), self.ranks, self.rank)
        outputs = torch.zeros(shape.outputs)
        inputs = outputs if shape.in_place else torch.zeros(shape.inputs)
        inputs.copy_(values(self.rank, 0, shape.inputs))
        call = call_of(shape, inputs, outputs, "single" if variant == "default" else variant)
        try:
            call()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            return "no " + str(error).splitlines()[0]
        right = expected(shape, self.ranks, self.rank)
        if right is not None and not torch.equal(outputs, right):
            return f"no wrong result: {op} of {bytes_} bytes on rank {self.rank}"
        dist.barrier()
        # Repeated sums leave zeros as they are.
        outputs.zero_()
        inputs.zero_()
        self.prepared[identity] = Prepared(call, 2 if op == "send_recv" else 1, op in APART)
        return "ok torch"

    def round(self, identity: str, runs: str) -> str:
        prepared = self.prepared[identity]
        count = int(runs)
        if prepared.apart:
            seconds = sum(prepared.one() for _ in range(count))
        else:
            call = prepared.call
            dist.barrier()
            start = time.perf_counter()
            for _ in range(count):
                call()
            seconds = time.perf_counter() - start
        dist.barrier()
        return f"ok {seconds / (count * prepared.ops_per_run):.4e}"

    def singles(self, identity: str, runs: str) -> str:
        prepared = self.prepared[identity]
        dist.barrier()
        times = [prepared.one() / prepared.ops_per_run for _ in range(int(runs))]
        dist.barrier()
        return "ok " + " ".join(f"{seconds:.4e}" for seconds in times)

    def storm(self, identity: str, runs: str) -> str:
        """Computes and communicates in turn until a member is missing; when each op ended, in Unix nanoseconds."""
        from closeranks import last_contributors  # noqa: PLC0415 - Gloo's processes do without

        prepared = self.prepared[identity]
        left, right = torch.randn(BUSY_SIDE, BUSY_SIDE), torch.randn(BUSY_SIDE, BUSY_SIDE)
        ended = []
        for _ in range(int(runs)):
            torch.mm(left, right)
            prepared.call()
            ended.append(time.time_ns())
            if len(last_contributors()) < self.ranks:
                break
        return "ok " + " ".join(map(str, ended))

    def release(self) -> str:
        self.prepared.clear()
        return "ok"

    def explain(self, identity: str) -> str:
        del identity
        return "ok"

    def variants(self, op: str) -> str:
        return "ok " + " ".join(variants(op))

    def answer(self, line: str) -> str:
        verb, *words = line.split()
        return str(getattr(self, verb)(*words))


def quicken_sockets() -> str:
    """Sets fast congestion control on all TCP connections of this process; what it did, in words, or ""."""
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip().encode()
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    fast = next((name for name in FAST_CONGESTION if name.decode() in available), None)
    if default in FAST_CONGESTION or fast is None:
        return f"TCP congestion control {default.decode()}"
    changed = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, fast)
                changed += 1
    return f"TCP congestion control {fast.decode()} on its {changed} sockets instead of {default.decode()}"


def main() -> None:
    backend = sys.argv[1]
    torch.set_num_threads(1)
    if backend == "gloo":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = c10d.FileStore(os.environ["CLOSERANKS_BENCH_STORE"], int(os.environ["WORLD_SIZE"]))
        dist.init_process_group(
            "gloo", store=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )
        dist.barrier()
        quickened = quicken_sockets()
    else:
        dist.init_process_group("closeranks")
        quickened = ""
    worker = Worker()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bench:
        bench.connect(os.environ["CLOSERANKS_BENCH_SOCKET"])
        lines = bench.makefile("r")
        bench.sendall(f"hello {os.environ['CLOSERANKS_BENCH_SIDE']} {worker.rank}\n".encode())
        for line in lines:
            if line.strip() == "end":
                break
            answer = f"ok {quickened}" if line.strip() == "settings" else worker.answer(line)
            bench.sendall(answer.encode() + b"\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
