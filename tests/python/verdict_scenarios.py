"""What goes wrong in distributed training, a function per kind of verdict: each a script that a user might have.

    python verdict_scenarios.py KIND [--backend closeranks] [--timeout 5]

All slots run three ordinary steps; in the fourth it happens, on slot 1 alone where it has a culprit. RANK, WORLD_SIZE
(3 at least), MASTER_ADDR and MASTER_PORT are in the environment, as every launcher gives them.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

CULPRIT = 1
ORDINARY_STEPS = 3
STEP_S = 0.2  # long enough for a coordinator to see that the worker gets on
FOR_EVER = 600.0  # seconds; each job is ended long before


class Job:
    """The part of the job that this process has."""

    def __init__(self, backend: str, timeout_s: float) -> None:
        self.timeout = datetime.timedelta(seconds=timeout_s)
        dist.init_process_group(backend, timeout=self.timeout)
        self.slot = dist.get_rank()
        self.backend = backend
        self.steps = 0

    def culprit(self) -> bool:
        return self.slot == CULPRIT

    def begin_step(self) -> None:
        if self.backend == "closeranks":
            import closeranks  # noqa: PLC0415 - the old way runs these scripts, too

            closeranks.mark("training", step=self.steps)
        self.steps += 1

    def reduce(self, elements: int = 1000, dtype: torch.dtype = torch.float32) -> None:
        dist.all_reduce(torch.ones(elements, dtype=dtype))

    def ordinary_steps(self) -> None:
        for _ in range(ORDINARY_STEPS):
            self.begin_step()
            time.sleep(STEP_S)
            self.reduce()
        self.begin_step()


def killed(job: Job) -> None:
    if job.culprit():
        os.kill(os.getpid(), signal.SIGKILL)
    job.reduce()


def out_of_memory(job: Job) -> None:
    """The job's memory cgroup has a limit (the test's)."""
    kept = []
    if job.culprit():
        # Else the kernel may take another worker that is as large at that moment, and rightly be said to have done so.
        Path("/proc/self/oom_score_adj").write_text("1000")
    while job.culprit():
        kept.append(b"x" * (16 << 20))
    job.reduce()


def exception(job: Job) -> None:
    if job.culprit():
        raise ValueError("batch 17 has no labels")
    job.reduce()


def stopped(job: Job) -> None:
    if job.culprit():
        os.kill(os.getpid(), signal.SIGSTOP)
    job.reduce()


def fetch_the_vocabulary() -> None:
    time.sleep(FOR_EVER)


def stuck(job: Job) -> None:
    if job.culprit():
        fetch_the_vocabulary()
    job.reduce()


def uninterruptible(job: Job) -> None:
    """Reads a file whose file system never answers: $SILENT_FILE (silent_files.py)."""
    if job.culprit():
        # A signal makes the kernel's wait one that nothing but an answer ends: state D.
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with open(os.environ["SILENT_FILE"], "rb", buffering=0) as file:
            file.read(1)
    job.reduce()


def missing_call(job: Job) -> None:
    """One member skips the second all_reduce of a step, and all its later ones pair with the wrong ones."""
    for step in range(3):
        job.reduce()
        if not (job.culprit() and step == 1):
            job.reduce()
        job.begin_step()
    if job.culprit():
        time.sleep(FOR_EVER)


def wrong_op(job: Job) -> None:
    if job.culprit():
        dist.all_gather_into_tensor(torch.empty(1000 * dist.get_world_size()), torch.ones(1000))
    else:
        job.reduce()


def wrong_order(job: Job) -> None:
    """Two groups of all slots; one member calls on them the other way round."""
    groups = [group for group in (dist.new_group(), dist.new_group()) if isinstance(group, dist.ProcessGroup)]
    for group in groups:  # connected
        dist.all_reduce(torch.ones(1), group=group)
    if job.culprit():
        groups.reverse()
    for group in groups:
        dist.all_reduce(torch.ones(1000), group=group)


def wrong_shape(job: Job) -> None:
    job.reduce(999 if job.culprit() else 1000)


def wrong_dtype(job: Job) -> None:
    job.reduce(dtype=torch.float64 if job.culprit() else torch.float32)


def wrong_root(job: Job) -> None:
    dist.broadcast(torch.ones(1000), src=2 if job.culprit() else 0)


def left_early(job: Job) -> None:
    """Its data ends one step earlier than that of the others."""
    if not job.culprit():
        job.reduce()


def nan(job: Job) -> None:
    gradient = torch.ones(1000)
    if job.culprit():
        gradient[17] = float("nan")
    dist.all_reduce(gradient)
    if gradient.isnan().any():
        raise FloatingPointError("the loss is nan")


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Its fifth item takes for ever where `starved`."""

    def __init__(self, starved: bool) -> None:
        self.starved = starved

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.starved and index == 4:
            time.sleep(FOR_EVER)
        return torch.ones(1000)


def data_starved(job: Job) -> None:
    for batch in torch.utils.data.DataLoader(Numbers(starved=job.culprit())):
        job.begin_step()
        dist.all_reduce(batch)


def no_culprit(job: Job) -> None:
    """Slots 1 and 2 both stay away: nothing says which of them is at fault."""
    if job.slot in (1, 2):
        fetch_the_vocabulary()
    job.reduce()


def ok(job: Job) -> None:
    job.reduce()


SCENARIOS: dict[str, Callable[[Job], None]] = {
    scenario.__name__: scenario
    for scenario in (
        killed,
        out_of_memory,
        exception,
        stopped,
        stuck,
        uninterruptible,
        missing_call,
        wrong_op,
        wrong_order,
        wrong_shape,
        wrong_dtype,
        wrong_root,
        left_early,
        nan,
        data_starved,
        no_culprit,
        ok,
    )
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(SCENARIOS))
    parser.add_argument("--backend", default="closeranks")
    parser.add_argument("--timeout", type=float, default=5, help="of the groups, in seconds")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    job = Job(arguments.backend, arguments.timeout)
    job.ordinary_steps()
    SCENARIOS[arguments.kind](job)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
