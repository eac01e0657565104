"""Session and ElasticSampler with fixed members (any launcher): weighted averages against one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import closeranks
from closeranks.parallel import adopt_bucket_layout, bucket_layout, settle_buckets
from worker_processes import Workers

Job = Callable[..., Workers]


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2))


def samples(length: int) -> torch.Tensor:
    return torch.randn(length, 6, generator=torch.Generator().manual_seed(8))


def alone(length: int, turns: list[list[list[int]]]) -> torch.Tensor:
    """The same steps in one process: `turns` has the samples of each step, by slot, padding left out."""
    net, data = network(), samples(length)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for by_slot in turns:
        optimizer.zero_grad()
        taken = [index for slot in by_slot for index in slot]
        net(data[taken]).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("length", [7, 9, 13])
def test_gradients_are_weighted_by_samples(job: Job, length: int) -> None:
    def body(rank: int, world: int) -> Any:
        torch.set_num_threads(1)
        model = closeranks.data_parallel(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = closeranks.ElasticSampler(length)
        loader = DataLoader(TensorDataset(samples(length), torch.arange(length)), 4, sampler=sampler)
        session = closeranks.Session(model, optimizer, sampler)
        taken = []
        for step in session.steps(loader, epochs=2):
            with step as (x, index):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                assert step.turn is not None
                taken.append(index.tolist()[: step.turn.takes[rank]])
        accounts = sampler.ledger.merged()
        assert all(account.exact for account in accounts.values()) and len(accounts) == 2
        return taken, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()

    values = job(body, 3).values()
    turns = [list(by_slot) for by_slot in zip(*(taken for taken, _ in values), strict=True)]
    assert len({tuple(parameters) for _, parameters in values}) == 1
    torch.testing.assert_close(torch.tensor(values[0][1]), alone(length, turns), rtol=1e-5, atol=1e-6)


def test_a_session_saves_once_and_all_resume(job: Job, tmp_path: Path) -> None:
    def body(rank: int, world: int) -> Any:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        data = TensorDataset(samples(30))
        results = []
        for attempt in range(2):
            model = closeranks.data_parallel(network())
            optimizer = torch.optim.Adam(model.parameters())
            sampler = closeranks.ElasticSampler(30)
            loader = DataLoader(data, 2, sampler=sampler)
            session = closeranks.Session(model, optimizer, sampler, resume=tmp_path if attempt else None)
            began = session.step
            for step in session.steps(loader, epochs=3):
                with step as (x,):
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if session.step == 9 and not attempt:
                    path = session.save(tmp_path)
                    torch.distributed.barrier()
            flat = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
            results.append((began, session.step, flat))
        return path is not None, results

    values = job(body, 3).values()
    assert [wrote for wrote, _ in values] == [True, False, False]
    for _, (first, second) in values:
        assert (first[0], second[0]) == (0, 9)
        assert first[1:] == second[1:] == values[0][1][0][1:]


def test_buckets_can_be_settled_before_the_second_step(job: Job) -> None:
    def body(rank: int, world: int) -> Any:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        # Used in another order than defined, in buckets of a few parameters.
        layers = nn.ModuleList([nn.Linear(40, 40) for _ in range(6)])

        class Shuffled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = copy.deepcopy(layers)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for number in (3, 0, 5, 1, 4, 2):
                    x = torch.tanh(self.layers[number](x))
                return x

        model = closeranks.data_parallel(Shuffled(), bucket_cap_mb=0.01)
        before = bucket_layout(model)
        model(torch.randn(2, 40)).sum().backward()
        settle_buckets(model)
        after = bucket_layout(model)
        assert sorted(number for bucket in after for number in bucket) == list(range(12))
        kinds = [op.kind for op in closeranks.recent_ops(model.process_group)]
        model(torch.randn(2, 40)).sum().backward()
        assert bucket_layout(model) == after
        later = [op.kind for op in closeranks.recent_ops(model.process_group)][len(kinds) :]
        return before, after, later.count("broadcast")

    values = job(body, 2).values()
    before, after, broadcasts = values[0]
    assert values[1] == values[0]
    assert before != after
    assert broadcasts == 0, "DDP does not regroup once more"


def test_only_models_that_can_lose_workers_are_taken(job: Job) -> None:
    def body(rank: int, world: int) -> None:
        torch.set_num_threads(1)
        plain = network()
        optimizer = torch.optim.SGD(plain.parameters())
        with pytest.raises(closeranks.Unsupported, match=r"wrapped by closeranks\.data_parallel, not Sequential"):
            closeranks.Session(plain, optimizer)
        with pytest.raises(closeranks.Unsupported, match="not DistributedDataParallel"):
            closeranks.Session(DistributedDataParallel(plain), optimizer)
        with pytest.raises(closeranks.Unsupported, match="static_graph"):
            closeranks.Session(closeranks.data_parallel(plain, static_graph=True), optimizer)
        model = closeranks.data_parallel(network())
        settle_buckets(model)  # before any backward pass there is nothing to settle
        with pytest.raises(closeranks.Error):
            adopt_bucket_layout(model, bucket_layout(model))  # nobody's answers: it is not a newcomer
        torch.distributed.barrier()

    job(body, 2).values()
