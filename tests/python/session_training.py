"""The Session tests' training script: a small model on ElasticSampler, with faults; run by `closeranks run`.

--faults: a JSON list, see session_faults.py.
--kills N --seed S: N workers kill themselves at moments drawn from S, of those that are present when at least
three are; now and then a newcomer does while it joins.
Each worker that reaches the end writes FOLDER/slot-N.json; each one appends a line per step to FOLDER/steps-N.jsonl.
One that leaves writes FOLDER/left-N.json, and with --save-at -1 a checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import closeranks
from session_faults import Faults, StrikingJob, later


class Net(nn.Module):
    """Layers of equal size, defined in another order than used: a newcomer with buckets of its own would swap them."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.last = nn.Linear(hidden, 8)
        self.second = nn.Linear(hidden, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.third = nn.Linear(hidden, hidden)
        self.first = nn.Linear(16, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.third(torch.relu(self.second(x)))))


def samples(length: int) -> torch.Tensor:
    return torch.randn(length, 16, generator=torch.Generator().manual_seed(5))


def digest(tensors: Iterable[torch.Tensor]) -> str:
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def arguments_of_script() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--joins", type=int, default=0, help="epochs go on until so many replacements are in")
    parser.add_argument("--most-epochs", type=int, default=400)
    parser.add_argument("--length", type=int, default=407)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--policy", default="repair")
    parser.add_argument("--pause-ms", type=float, default=0)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--faults", default="[]")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-at", type=int, default=0, help="a step; -1: when it leaves")
    parser.add_argument("--await-replacement", type=float, default=0)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


class Worker:
    """One worker's training."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.slot = dist.get_rank()
        lives = arguments.out / f"lives-{self.slot}"
        self.life = int(lives.read_text()) + 1 if lives.exists() else 0
        lives.write_text(str(self.life))
        self.faults = Faults(json.loads(arguments.faults), self.slot, self.life)

        torch.manual_seed(1)
        self.net = Net(arguments.hidden)  # replayed by test_session.replay()
        self.model = closeranks.data_parallel(self.net, bucket_cap_mb=0.02)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(parameters, lr=0.003)
            if arguments.optimizer == "adam"
            else torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 7, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5, enabled=arguments.scaler)
        torch.manual_seed(100 + self.slot)
        self.sampler = closeranks.ElasticSampler(arguments.length, seed=3)
        data = samples(arguments.length)
        self.loader = DataLoader(
            TensorDataset(data, torch.arange(arguments.length)),
            batch_size=arguments.batch,
            sampler=self.sampler,
            num_workers=arguments.loader_workers,
        )
        self.joins: list[Any] = []
        self.losses: list[Any] = []
        self.history: list[int] = []
        self.kills: list[list[int]] = []  # [step, slot]: every worker draws the same
        state: dict[str, Any] = {
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "joins": self.joins,
            "losses": self.losses,
            "history": self.history,
            "kills": self.kills,
        }
        self.job = StrikingJob(self.faults)
        checkpoints = arguments.out / "checkpoints"
        self.session = closeranks.Session(
            self.model,
            self.optimizer,
            self.sampler,
            state,
            policy=arguments.policy,
            resume=checkpoints if arguments.resume else None,
            await_replacement_s=arguments.await_replacement,
            job=self.job,
        )
        self.resumed_at = self.session.step
        self.session.on_join(lambda slots: self.joins.append([self.session.step, slots]))
        self.session.on_loss(lambda slots: self.losses.append([self.session.step, slots]))
        self.identities = self.identities_now()
        self.log = (arguments.out / f"steps-{self.slot}.jsonl").open("a")

    def identities_now(self) -> list[int]:
        group = self.model.process_group
        return [id(self.model), id(self.model.reducer), id(self.optimizer), id(group), id(dist.group.WORLD)]

    def run(self) -> None:
        self.faults.before_joining()
        drawn = random.Random(f"{self.arguments.seed} {self.slot} {self.life}")
        if self.arguments.kills and self.life > 0 and drawn.random() < 0.15:
            # While it joins, or a little later: then somebody has to be left, whom a drawn kill may hit meanwhile.
            later({"delay_ms": drawn.uniform(0, 300)}, self.in_a_small_view)
        for step in self.steps():
            self.train(step)
            if self.session.step == self.arguments.save_at:
                self.session.save(self.arguments.out / "checkpoints")
            if self.arguments.pause_ms:
                time.sleep(self.arguments.pause_ms / 1000)

    def in_a_small_view(self) -> bool:
        return self.slot in self.session.present and len(self.session.present) < 3

    def steps(self) -> Iterator[closeranks.Step]:
        """A replacement begins here with session.epoch 0 and goes on in the job's epoch."""
        arguments, session = self.arguments, self.session
        while session.epoch < arguments.epochs or (
            (sum(len(slots) for _, slots in self.joins) < arguments.joins or len(self.kills) < arguments.kills)
            and session.epoch < arguments.most_epochs
        ):
            yield from session.steps(self.loader, epochs=session.epoch + 1, accumulate=arguments.accumulate)
            if session.leaving:
                return

    def train(self, step: closeranks.Step) -> None:
        if step.repetition == 0:
            self.faults.begin_step(step, self.sampler, self.net.last.weight)
            self.draw_kill(step.number)
        before = digest(self.model.parameters())
        with step as given:
            batches = given if self.arguments.accumulate > 1 else [given]
            for number, (x, _) in enumerate(batches):
                self.model.require_backward_grad_sync = number == len(batches) - 1
                loss = self.model(x).square().mean() / len(batches)
                self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
        if self.session.step != step.number:
            return  # it will be repeated
        self.history.append(self.session.step)
        line = {
            "step": self.session.step,
            "life": self.life,
            "epoch": self.session.epoch,
            "time": time.time(),
            "before": before,
            "parameters": digest(self.model.parameters()),
            "present": self.session.present,
            "repetition": step.repetition,
            "indices": [index for _, part in batches for index in part.tolist()],
            "takes": step.turn.takes[self.slot] if step.turn else 0,
        }
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        self.faults.end_step(self.session)

    def draw_kill(self, number: int) -> None:
        if len(self.kills) >= self.arguments.kills or len(self.session.present) < 3:
            return
        drawn = random.Random(f"{self.arguments.seed} {len(self.kills)}")
        last = self.kills[-1][0] if self.kills else 0
        if number < last + drawn.choice([1, 1, 2, 5, 9]):
            return
        # The last victims may still be about: struck by now, or about to be. Two others are left in any case.
        struck = {slot for step, slot in self.kills if number - step < 20}
        candidates = [slot for slot in self.session.present if slot not in struck]
        if len(candidates) < 3:
            return
        victim = drawn.choice(candidates)
        self.kills.append([number, victim])
        if victim == self.slot:
            fault = {"where": drawn.choice(["step", "backward"]), "delay_ms": drawn.choice([0, drawn.uniform(0, 40)])}
            self.faults.arm(fault, self.net.last.weight)

    def report(self) -> dict[str, Any]:
        ledger, session = self.sampler.ledger, self.session
        moments = [
            value
            for values in self.optimizer.state_dict()["state"].values()
            for value in values.values()
            if isinstance(value, torch.Tensor)
        ]
        return {
            "slot": self.slot,
            "life": self.life,
            "steps": session.step,
            "epoch": session.epoch,
            "resumed_at": self.resumed_at,
            "parameters": digest(self.model.parameters()),
            "optimizer": digest(moments),
            "finite": all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()),
            "present": session.present,
            "identities_kept": self.identities == self.identities_now(),
            "joins": self.joins,
            "losses": self.losses,
            "kills": self.kills,
            "history": self.history,
            "lr": self.scheduler.get_last_lr(),
            "scale": self.scaler.get_scale(),
            "exact": [account.exact for account in ledger.merged().values()],
            "samples_lost": ledger.samples_lost,
            "samples_repeated": ledger.samples_repeated,
            "entries": [[e.epoch, e.round, e.slot, e.start, e.stop, e.step] for e in ledger.entries],
            "last_sequence": max((op.sequence for op in closeranks.recent_ops(self.model.process_group)), default=-1),
        }


def main() -> None:
    arguments = arguments_of_script()
    torch.set_num_threads(1)
    closeranks.init()
    worker = Worker(arguments)
    worker.run()
    if worker.session.leaving:
        if arguments.save_at < 0:
            worker.session.save(arguments.out / "checkpoints")
        left = arguments.out / f"left-{worker.slot}.json"
        facts = {
            "slot": worker.slot,
            "step": worker.session.step,
            "epoch": worker.session.epoch,
            "children_live": worker.job.children_live,
        }
        left.write_text(json.dumps(facts))
        return
    torch.save(worker.net.state_dict(), arguments.out / f"parameters-{worker.slot}.pt")
    (arguments.out / f"slot-{worker.slot}.json").write_text(json.dumps(worker.report()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
