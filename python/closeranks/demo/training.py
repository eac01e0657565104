"""The demo's training script: a small convolutional network on scikit-learn's handwritten digits.

Run by `closeranks run`, one process per slot; a replacement runs it from the top. Each worker appends to
FOLDER/slot-N.jsonl, one JSON object per line, as it goes:
  {"step": 17, "loss": 0.31, "time": unix seconds at the step's end, "present": [0, 1, 3], "worker": 5}
  {"op": sequence, "kind": "all_reduce", "time": when it finished, "contributors": [0, 1, 2, 3], "worker": 5}
and at the end {"accuracy": fraction of held-out images, "parameters": sha256 of all parameters' bytes, "steps": n,
"samples_lost": 0, "samples_repeated": 0, "worker": 5}.
It is what a user's own script would be, but for two things: SIGUSR1 sends it into an endless loop, as a bug would, and
while there is a file FOLDER/slow its steps take SLOW_S longer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import closeranks
from closeranks.demo import BATCH, HELD_OUT

PEAK_LEARNING_RATE = 0.03
SLOW_S = 0.2


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1, bias=False),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 96, 3, padding=1, bias=False),
        nn.BatchNorm2d(96),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(384, 96),
        nn.ReLU(),
        nn.Linear(96, 10),
    )


def images(file: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images [n, 1, 8, 8] in 0..1 with labels [n], then the held-out ones, from runs.write_images()."""
    pixels, labels = torch.load(file)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1797))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return pixels[training], labels[training], pixels[held_out], labels[held_out]


def learning_rate(progress: float) -> float:
    """Up for the first third, then down to nothing; `progress` is the part of the training that is done."""
    if progress < 0.3:
        return 0.04 + 0.96 * progress / 0.3
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (progress - 0.3) / 0.7))


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Log:
    """Appends JSON lines; each names the worker that wrote it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._worker = int(os.environ.get("CLOSERANKS_WORKER", "0"))

    def write(self, **record: Any) -> None:
        self._file.write(json.dumps({**record, "worker": self._worker}) + "\n")

    def flush(self) -> None:
        self._file.flush()


def endless_loop(_signal: int, _frame: object) -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    signal.signal(signal.SIGUSR1, endless_loop)
    torch.set_num_threads(1)
    closeranks.init()
    slot = dist.get_rank()
    pixels, labels, held_out_pixels, held_out_labels = images(arguments.images)

    torch.manual_seed(7)
    model = closeranks.data_parallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK_LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
    sampler = closeranks.ElasticSampler(len(labels), seed=11)
    loader = DataLoader(TensorDataset(pixels, labels), batch_size=BATCH, sampler=sampler)
    # By epochs, not steps: how many steps an epoch has depends on how many workers share it.
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: learning_rate(epoch / arguments.epochs))
    loss_of = nn.CrossEntropyLoss()
    session = closeranks.Session(model, optimizer, sampler, state={"scheduler": scheduler})

    log = Log(arguments.out / f"slot-{slot}.jsonl")
    slow = arguments.out / "slow"
    last_op = -1
    while session.epoch < arguments.epochs:
        for step in session.steps(loader, epochs=session.epoch + 1):
            with step as (batch, answers):
                loss = loss_of(model(batch), answers)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(step=session.step, loss=loss.item(), time=time.time(), present=session.present)
            for op in closeranks.recent_ops(model.process_group, last_op):
                last_op = op.sequence
                log.write(op=op.sequence, kind=op.kind, time=op.time, contributors=op.contributors)
            log.flush()
            if slow.exists():
                time.sleep(SLOW_S)
        scheduler.step()

    # Running statistics of BatchNorm are each worker's own between two forward passes; evaluate with the lowest present
    # slot's, as DDP would share them in the next one.
    model.module.train()
    model._sync_buffers()  # type: ignore[no-untyped-call]
    model.eval()
    with torch.no_grad():
        predicted = model(held_out_pixels).argmax(dim=1)
    accuracy = (predicted == held_out_labels).double().mean().item()
    log.write(
        accuracy=accuracy,
        parameters=fingerprint(model),
        steps=session.step,
        samples_lost=sampler.ledger.samples_lost,
        samples_repeated=sampler.ledger.samples_repeated,
    )
    log.flush()
    dist.barrier(group=model.process_group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
