"""Members that do not wrap the same model, or whose buckets differ, hear of it before any gradient is added up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks
from closeranks.parallel import bucket_layout
from closeranks.same_model import describe, reducer_parameters
from worker_pool import Pools
from worker_processes import Workers

Job = Callable[..., Workers]


class Pair(nn.Module):
    """Two layers of one shape; `order` is the order in which they are registered."""

    def __init__(self, order: str = "ab", width: int = 4) -> None:
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return, operator]


def build(wrap: str, module: nn.Module, **keywords: Any) -> DistributedDataParallel:
    return (DistributedDataParallel if wrap == "ddp" else closeranks.data_parallel)(module, **keywords)


def frozen(odd: bool) -> nn.Module:
    module = Pair()
    module.a.weight.requires_grad_(not odd)  # type: ignore[union-attr]
    return module


BOTH = pytest.mark.parametrize("wrap", ["ddp", "data_parallel"])


@BOTH
def test_another_order_of_the_same_shapes(job: Job, wrap: str) -> None:
    def body(rank: int, _world: int) -> str:
        with pytest.raises(closeranks.Mismatch) as caught:
            build(wrap, Pair("ba" if rank == 2 else "ab"))
        assert caught.value.move == "fix_call"
        assert caught.value.slot == 2
        return str(caught.value)

    texts = job(body, 3).values()
    assert len(set(texts)) == 1, "every member says the same"
    assert "parameter 0 is a.weight (float32 [4, 4]) on rank 0 and b.weight (float32 [4, 4]) on rank 2" in texts[0]


@BOTH
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda odd: Pair(width=5 if odd else 4), "a.weight (float32 [4, 4]) on rank 0 and a.weight (float32 [5, 5])"),
        (lambda odd: Pair("abc" if odd else "ab"), "parameter 4 is none on rank 0 and c.weight (float32 [4, 4]) on"),
        (lambda odd: Pair().to(torch.float64 if odd else torch.float32), "a.weight (float64 [4, 4]) on rank 1"),
        (frozen, "parameter 0 is a.weight (float32 [4, 4]) on rank 0 and a.bias (float32 [4]) on rank 1"),
    ],
    ids=["shape", "number", "type", "frozen"],
)
def test_other_differences(job: Job, wrap: str, make: Callable[[bool], nn.Module], words: str) -> None:
    def body(rank: int, _world: int) -> str:
        with pytest.raises(closeranks.Mismatch) as caught:
            build(wrap, make(rank == 1))
        return str(caught.value)

    for text in job(body, 2).values():
        assert words in text


def test_other_keywords(job: Job) -> None:
    def body(rank: int, _world: int) -> str:
        with pytest.raises(closeranks.Mismatch) as caught:
            DistributedDataParallel(Pair(), find_unused_parameters=rank == 1)
        return str(caught.value)

    for text in job(body, 2).values():
        assert "rank 0 gives none of them and rank 1 find_unused_parameters=True" in text


def goes_on(rank: int, world: int) -> None:
    """What is equal passes: parameters alone are compared, each once, without those that are ignored or frozen."""
    shared = Pair()
    shared.b.weight = shared.a.weight  # type: ignore[union-attr]
    shared.register_buffer("mine", torch.full((rank + 1,), 1.0))
    shared.a.bias.requires_grad_(False)  # type: ignore[union-attr]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(shared, ["mine", "b.bias"])
    model = DistributedDataParallel(shared)
    ours = reducer_parameters(shared, frozenset(["mine", "b.bias"]))
    theirs = model._build_params_for_reducer()[0]  # type: ignore[no-untyped-call]
    assert [id(parameter) for _, parameter in ours] == [id(parameter) for parameter in theirs]
    assert [name for name, _ in ours] == ["a.weight"]
    assert describe(shared, {}).parameters == ("a.weight (float32 [4, 4])",)

    # Without communication, as its name says.
    before = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    DistributedDataParallel(Pair("ab" if rank else "ba"), init_sync=False)
    assert dist.group.WORLD._get_sequence_number_for_group() == before  # type: ignore[union-attr]
    # What DDP itself refuses, it refuses in its own words.
    with pytest.raises(RuntimeError, match="doesn't have any parameter"):
        DistributedDataParallel(nn.ReLU())
    with pytest.raises(TypeError, match="unexpected keyword"):
        DistributedDataParallel(Pair(), nonsense=1)
    # On another backend's group nothing is compared.
    gloo = dist.new_group(backend="gloo")
    DistributedDataParallel(Pair("ab" if rank else "ba"), process_group=gloo)
    dist.destroy_process_group(gloo)
    assert world == 2


def test_the_same_models_pass(pools: Pools) -> None:
    pools.of(2).run(goes_on)


@pytest.mark.parametrize("what", ["order", "cut"])
def test_buckets_of_another_layout_and_the_same_size(job: Job, what: str) -> None:
    """The reducers are made to differ after their construction, as a fault in DDP's regrouping would."""

    def body(rank: int, _world: int) -> str:
        from torch._C._distributed_c10d import Reducer  # noqa: PLC0415 - in the worker

        model = closeranks.data_parallel(Pair(width=8))
        places = {"order": [[0, 1], [2, 3]], "cut": [[0, 1], [2, 3]]}[what]
        if rank == 1:
            places = {"order": [[2, 3], [0, 1]], "cut": [[1, 0], [2, 3]]}[what]
        parameters = model._build_params_for_reducer()[0]  # type: ignore[no-untyped-call]
        sizes = [2**20] * len(places)
        model.reducer = Reducer(parameters, places, sizes, model.process_group, [False] * 4)
        closeranks._closeranks.average_over_contributors(model.reducer, model.process_group, parameters)
        assert bucket_layout(model) == places
        loss = model(torch.full((2, 8), float(rank + 1))).sum()
        with pytest.raises(closeranks.Mismatch) as caught:
            loss.backward()
        return str(caught.value)

    for text in job(body, 2).values():
        assert "all_reduce" in text


TORCHRUN = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("closeranks")
rank = dist.get_rank()
module = nn.Sequential()
for name in ("ab" if rank == 0 else "ba"):
    module.add_module(name, nn.Linear(4, 4))
try:
    DistributedDataParallel(module)
except dist.DistBackendError as error:
    open(os.environ["RESULTS"] + f"/{rank}", "w").write(type(error).__name__ + " " + str(error))
dist.destroy_process_group()
"""


def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [str(torchrun), "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    result = subprocess.run(
        [*command, str(script)],
        env={**os.environ, "RESULTS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for rank in (0, 1):
        text = (tmp_path / str(rank)).read_text()
        assert text.startswith("Mismatch ")
        assert "a.weight (float32 [4, 4]) on rank 0 and b.weight (float32 [4, 4]) on rank 1" in text
