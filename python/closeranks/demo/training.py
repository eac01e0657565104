"""The demo's training script: a small convolutional network on scikit-learn's handwritten digits.

Run by `closeranks run`, one process per slot. Writes FOLDER/slot-N.jsonl, one JSON object per line, as it goes:
  {"step": 17, "loss": 0.31, "time": unix seconds at the step's end, "present": [0, 1, 3]}
  {"op": sequence, "kind": "all_reduce", "time": unix seconds when it finished, "contributors": [0, 1, 2, 3]}
and at the end {"accuracy": fraction of held-out images, "parameters": sha256 of all parameters' bytes, "steps": n}.
The same lines would be in a user's own script; nothing here knows that workers will be killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import closeranks

HELD_OUT = 360  # of 1,797 images; drawn with a fixed seed
BATCH = 32  # images per worker and step


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


def images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images [n, 1, 8, 8] in 0..1 with labels [n], then the held-out ones."""
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1797))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return pixels[training], labels[training], pixels[held_out], labels[held_out]


def batch_of(step: int, rank: int, world: int, count: int) -> torch.Tensor:
    """Indices of this slot's images in `step`: an equal share of an epoch's permutation, anew each epoch."""
    steps_per_epoch = count // (world * BATCH)
    epoch, turn = divmod(step, steps_per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    start = (turn * world + rank) * BATCH
    return order[start : start + BATCH]


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write(log: TextIO, **record: object) -> None:
    log.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("closeranks")
    rank, world = dist.get_rank(), dist.get_world_size()
    pixels, labels, held_out_pixels, held_out_labels = images()

    torch.manual_seed(7)
    model = closeranks.data_parallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.15, total_steps=arguments.steps)
    loss_of = nn.CrossEntropyLoss()

    with (arguments.out / f"slot-{rank}.jsonl").open("w") as log:
        last_op = -1
        for step in range(arguments.steps):
            batch = batch_of(step, rank, world, len(labels))
            loss = loss_of(model(pixels[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            present = closeranks.present(model.process_group)
            write(log, step=step, loss=loss.item(), time=time.time(), present=present)
            for op in closeranks.recent_ops(model.process_group):
                if op.sequence > last_op:
                    last_op = op.sequence
                    write(
                        log,
                        op=op.sequence,
                        kind=op.kind,
                        time=op.time,
                        contributors=op.contributors,
                    )
            log.flush()

        # Running statistics of BatchNorm are each worker's own between two forward passes; one more forward pass in
        # training mode would share them. Evaluate with the lowest present slot's, as DDP itself would save them.
        model.eval()
        with torch.no_grad():
            predicted = model(held_out_pixels).argmax(dim=1)
        accuracy = (predicted == held_out_labels).double().mean().item()
        write(log, accuracy=accuracy, parameters=fingerprint(model), steps=arguments.steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
