"""An unmodified DDP script, and closeranks.data_parallel, against the same training over Gloo."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks
from worker_processes import Workers

Job = Callable[..., Workers]
STEPS = 12
REFERENCES: dict[str, list[dict[str, torch.Tensor]]] = {}  # Gloo's results by DDP's options


class Net(nn.Module):
    """Convolution, BatchNorm (buffers), an embedding and a branch that some steps leave unused."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.embedding = nn.Embedding(10, 8)
        self.branch = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, words: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        h = torch.relu(self.norm(self.convolution(x))).mean((2, 3)) + self.embedding(words)
        if use_branch:
            h = h + self.branch(h)
        return self.last(h)  # type: ignore[no-any-return]


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return (
        torch.randn(6, 1, 8, 8, generator=generator),
        torch.randint(0, 10, (6,), generator=generator),
        torch.randint(0, 4, (6,), generator=generator),
    )


def train(model: nn.Module, rank: int, *, vary: bool = False) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        x, words, target = batch(rank, step)
        loss = nn.functional.cross_entropy(model(x, words, not vary or (step + rank) % 3 != 0), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def digest(state: dict[str, torch.Tensor], names: list[str]) -> str:
    total = hashlib.sha256()
    for name in names:
        total.update(state[name].contiguous().numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"bucket_cap_mb": 0.0005},
        {"gradient_as_bucket_view": True, "static_graph": True},
        {"find_unused_parameters": True},
    ],
    ids=["plain", "many buckets", "views, static", "unused"],
)
@pytest.mark.parametrize("wrap", ["ddp", "data_parallel"])
def test_training_equals_gloo(job: Job, wrap: str, keywords: dict[str, Any]) -> None:
    vary = "find_unused_parameters" in keywords

    def ours(rank: int, _world: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(rank)  # DDP's constructor makes the replicas equal
        make = DistributedDataParallel if wrap == "ddp" else closeranks.data_parallel
        return train(make(Net(), **keywords), rank, vary=vary)

    def gloo(rank: int, _world: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(rank)
        return train(DistributedDataParallel(Net(), **keywords), rank, vary=vary)

    states = job(ours, 3).values()
    reference = REFERENCES.get(repr(keywords)) or job(gloo, 3, backend="gloo").values()
    REFERENCES[repr(keywords)] = reference
    parameters = [name for name in states[0] if "running" not in name and "tracked" not in name]
    assert len({digest(state, parameters) for state in states}) == 1
    for rank, state in enumerate(states):
        for name, value in state.items():
            torch.testing.assert_close(value, reference[rank][name], rtol=1e-4, atol=1e-5)


def test_no_sync_accumulates(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        torch.manual_seed(1)
        model = closeranks.data_parallel(nn.Linear(4, 1, bias=False))
        with model.no_sync():
            model(torch.full((1, 4), float(rank))).sum().backward()
        model(torch.full((1, 4), float(rank))).sum().backward()
        gradient = model.module.weight.grad
        assert gradient is not None
        torch.testing.assert_close(gradient, torch.full((1, 4), 2.0 * sum(range(world)) / world))

    job(body, 3).values()


def test_data_parallel_refuses_what_it_cannot_average(job: Job) -> None:
    def body(_rank: int, _world: int) -> None:
        model = closeranks.data_parallel(nn.Linear(4, 1))

        def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        with pytest.raises(closeranks.Unsupported, match="hook"):
            model.register_comm_hook(None, hook)
        with pytest.raises(closeranks.Unsupported, match="join"):
            model.join()
        with pytest.raises(closeranks.Unsupported, match="mixed_precision"):
            closeranks.data_parallel(nn.Linear(4, 1), mixed_precision=object())
        assert isinstance(model, DistributedDataParallel)
        assert model.process_group is not dist.group.WORLD
        model(torch.ones(1, 4)).sum().backward()

    job(body, 2).values()


def test_data_parallel_on_a_subgroup(job: Job) -> None:
    def body(rank: int, _world: int) -> None:
        low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
        torch.manual_seed(rank)
        model = closeranks.data_parallel(nn.Linear(4, 1, bias=False), process_group=low if rank < 2 else high)
        assert dist.get_process_group_ranks(model.process_group) == ([0, 1] if rank < 2 else [2, 3])
        model(torch.full((1, 4), float(rank))).sum().backward()
        gradient = model.module.weight.grad
        assert gradient is not None
        torch.testing.assert_close(gradient, torch.full((1, 4), 0.5 if rank < 2 else 2.5))

    job(body, 4).values()


def test_two_models_side_by_side(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        first, second = closeranks.data_parallel(nn.Linear(8, 8)), closeranks.data_parallel(nn.Linear(8, 8))
        for step in range(4):
            for model in (first, second):
                model.zero_grad()
                model(torch.full((2, 8), float(rank + step))).sum().backward()
                gradient = model.module.weight.grad
                assert gradient is not None
                torch.testing.assert_close(gradient, torch.full((8, 8), 2 * (sum(range(world)) / world + step)))

    job(body, 3).values()
