"""The training step that `closeranks bench ddp` measures. Uses nothing of closeranks: Gloo's processes run it, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn

WIDTHS = (1024, 2048, 2048, 1792, 10)
PARAMETERS = sum(before * after + after for before, after in itertools.pairwise(WIDTHS))  # 9,985,290


def training_step(batch: int, variant: str) -> Callable[[], None]:
    """Forward, backward and SGD on `batch` samples of a process; variant "alone": without DDP, nothing is averaged."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(before, after), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    model: nn.Module = network if variant == "alone" else nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    samples, labels = torch.randn(batch, WIDTHS[0]), torch.randint(WIDTHS[-1], (batch,))

    def step() -> None:
        nn.functional.cross_entropy(model(samples), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()  # DDP regroups its buckets after the first one
    return step
