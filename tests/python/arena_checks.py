"""What torch programs do with large CPU tensors, done by each worker of one job on tensors of its shared arena.

    closeranks run ... arena_checks.py FOLDER

Each worker writes FOLDER/slot-N.json: for each check null, a traceback, or {"skipped": why}. test_shared_arenas.py
reads it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

from closeranks import _closeranks

MIB = 1 << 20
CHECKS: dict[str, Callable[[], None]] = {}
KEPT: list[torch.Tensor] = []  # until the interpreter is gone


class Skipped(Exception):
    """A capability is missing: the message names it."""


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def shared(tensor: torch.Tensor) -> bool:
    return _closeranks.in_shared_memory(tensor)


def usage(what: str) -> int:
    return _closeranks.shared_memory_usage()[what]


def floats(mib: float, value: float = 1.0) -> torch.Tensor:
    return torch.full((int(mib * MIB) // 4,), value)


def in_fork(body: Callable[[], Any]) -> int:
    """Exit status of a fork child that runs `body`; 1 when it raises."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # a fork has none of OpenMP's threads
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@check
def large_tensors_are_shared_and_small_ones_are_not() -> None:
    assert usage("capacity_bytes") > 1 << 30
    assert shared(floats(1))
    assert shared(torch.empty(3, 700, 700, dtype=torch.float64))
    assert shared(floats(1) + floats(1))
    assert not shared(torch.ones(MIB // 4 - 1))
    assert not shared(torch.ones(3))
    assert not shared(torch.empty(0))
    assert floats(1).data_ptr() % 64 == 0
    # Views are where their storage is.
    assert shared(floats(4)[5:10])


@check
def collectives_on_them_are_right() -> None:
    tensor = floats(5, float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    assert shared(tensor)
    assert bool((tensor == sum(range(1, dist.get_world_size() + 1))).all())


@check
def buckets_of_ddp_are_shared() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1024), nn.Linear(1024, 8)), bucket_cap_mb=2
    )
    seen: list[tuple[int, bool]] = []

    def hook(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        seen.append((buffer.nbytes, shared(buffer)))
        work = dist.all_reduce(buffer.div_(dist.get_world_size()), group=group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    # DDP looks at the annotations themselves, which are text in this file.
    hook.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})
    model.register_comm_hook(dist.group.WORLD, hook)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):  # the buckets are laid out anew after the first
        model.zero_grad()
        model(torch.randn(16, 1024, generator=generator)).square().sum().backward()
    assert any(size >= MIB for size, _ in seen)
    assert all(is_shared == (size >= MIB) for size, is_shared in seen), seen
    digest = torch.stack([p.grad.double().sum() for p in model.parameters() if p.grad is not None])
    parts = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, digest)
    assert all(torch.equal(part, digest) for part in parts)


class Rows(Dataset[tuple[torch.Tensor, bool, float]]):
    """Large samples, made in the loader's processes from a tensor that they inherited; one of them writes into it."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, bool, float]:
        assert get_worker_info() is not None
        sample = self.data[index] * 2  # a large allocation
        again = self.data[index].clone()
        del again  # and a free
        was = float(self.data[0, 0])
        self.data[0] += 1
        return sample, shared(sample), was


@check
def forked_data_loaders_work() -> None:
    data = torch.arange(8.0).reshape(8, 1).repeat(1, MIB // 2)  # rows of 2 MiB
    assert shared(data)
    loader = DataLoader(Rows(data), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        seen = 0
        for index, (sample, in_arena, was) in enumerate(loader):
            if index > 1:
                assert bool((sample == 2 * index).all())
            assert not in_arena, "a child has no arena"
            seen += 1
            # Each of the two loaders has had its own half of the samples, and its own writes.
            assert was == index // 2
        assert seen == 8
        assert bool((data[0] == 0).all()), "what a loader writes is its own"


@check
def a_fork_child_keeps_what_its_parent_lets_go() -> None:
    def body(tensor: torch.Tensor, begin: Any, result: Any) -> None:
        begin.wait(30)
        result.send(bool((tensor == 7).all()))

    forks = torch.multiprocessing.get_context("fork")
    begin = forks.Event()
    ours, theirs = forks.Pipe()
    process = forks.Process(target=body, args=(floats(8, 7.0), begin, theirs))
    process.start()  # from here on nobody but the child has the tensor
    for value in range(20):
        floats(8, value)
    assert usage("held_bytes") >= 8 * MIB
    begin.set()
    assert ours.recv()
    process.join()
    floats(1)
    assert usage("held_bytes") == 0


@check
def fork_children_allocate_and_free() -> None:
    tensor = floats(2, 3.0)

    def body() -> None:
        nonlocal tensor
        new = floats(4)
        assert not shared(new)
        assert float((new[: tensor.numel()] + tensor)[-1]) == 4
        tensor.resize_(MIB)
        del tensor, new
        assert in_fork(lambda: floats(2).sum()) == 0

    assert in_fork(body) == 0
    assert bool((tensor == 3).all())


@check
def save_and_load() -> None:
    tensor = floats(2, 5.0)
    file = io.BytesIO()
    torch.save({"tensor": tensor, "view": tensor[10:20]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(loaded["tensor"], tensor)
    assert torch.equal(loaded["view"], tensor[10:20])
    assert shared(loaded["tensor"])


@check
def resize() -> None:
    tensor = floats(2, 5.0)
    tensor.resize_(MIB)
    assert shared(tensor)
    assert bool((tensor[: MIB // 2] == 5).all())
    tensor.resize_(10)
    assert bool((tensor == 5).all())
    tensor.untyped_storage().resize_(40)
    assert not shared(tensor)
    assert bool((tensor == 5).all())
    tensor.untyped_storage().resize_(4 * MIB)
    assert shared(tensor)
    assert bool((tensor == 5).all())


def add_one(tensor: torch.Tensor) -> None:
    tensor += 1


@check
def multiprocessing_with_spawn() -> None:
    tensor = floats(2, 5.0)
    other = floats(2, 6.0)
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    assert tensor.is_shared()  # type: ignore[no-untyped-call]
    assert not shared(tensor), "torch's own shared memory, not the arena"
    context = torch.multiprocessing.get_context("spawn")
    for sent, after in ((tensor, 6), (other, 7)):  # `other` is moved there by being sent
        process = context.Process(target=add_one, args=(sent,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert bool((sent == after).all())


@check
def the_memory_profiler_sees_them() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        tensor = torch.empty(4 * MIB)
        del tensor
    sizes = [event.cpu_memory_usage for event in profile.events()]
    assert 16 * MIB in sizes, sizes
    assert -16 * MIB in sizes, sizes


@check
def copy_on_write_clones() -> None:
    tensor = floats(2, 5.0)
    clone = torch._lazy_clone(tensor)
    blocks = usage("blocks")
    clone += 1
    assert usage("blocks") == blocks + 1, "a copy only now"
    assert shared(clone)
    assert bool((tensor == 5).all())
    assert bool((clone == 6).all())
    second = torch._lazy_clone(clone)
    del clone
    second += 1
    assert bool((second == 7).all())


@check
def compiled_functions() -> None:
    if dist.get_rank() != 0:
        return  # one compiler is enough
    if shutil.which("g++") is None:
        raise Skipped("no g++, which inductor needs")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

        def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (torch.sin(x) + y * 2).relu()

        x, y = torch.linspace(-3, 3, MIB), floats(4, 0.25)
        result = torch.compile(function)(x, y)
        torch.testing.assert_close(result, function(x, y))
        assert shared(result)


@check
def memory_is_used_again_and_bounded() -> None:
    before = usage("in_use_bytes")
    generator = torch.Generator().manual_seed(1)
    peak = 0
    kept: list[torch.Tensor] = []
    for _ in range(400):
        size = 1 + float(torch.rand((), generator=generator)) * 12
        kept.append(floats(size))
        peak = max(peak, usage("in_use_bytes"))
        if len(kept) > 6:
            del kept[int(torch.randint(len(kept), (), generator=generator))]
    slack = 256 * MIB
    assert usage("resident_bytes") <= peak + slack
    kept.clear()
    assert usage("in_use_bytes") == before
    # The same sizes again take no memory anew.
    floats(12)
    resident = usage("resident_bytes")
    for _ in range(100):
        floats(12)
    assert usage("resident_bytes") == resident
    # Much at once, for once, goes back in time.
    large = [floats(32) for _ in range(24)]
    del large
    assert usage("resident_bytes") > 768 * MIB
    for _ in range(2 * 4096):
        torch.empty(MIB // 4)
    assert usage("resident_bytes") < before + 2 * slack


@check
def tensors_outlive_the_engine() -> None:
    """The last one: ends the group."""
    KEPT.extend([floats(2, 4.0), floats(3, 5.0)])
    dist.destroy_process_group()
    assert bool((KEPT[0] == 4).all())
    KEPT[0].add_(1)
    assert bool((KEPT[0] == 5).all())
    del KEPT[0]


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("closeranks")
    slot = dist.get_rank()
    results: dict[str, Any] = {}
    for name, function in CHECKS.items():
        try:
            function()
            results[name] = None
        except Skipped as why:
            results[name] = {"skipped": str(why)}
        except Exception:
            results[name] = traceback.format_exc()
    (folder / f"slot-{slot}.json").write_text(json.dumps({"slot": slot, "results": results}))


if __name__ == "__main__":
    main()
