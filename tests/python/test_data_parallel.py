"""closeranks.data_parallel and object collectives while slots are vacant, under `closeranks run --shrink`.

One job loses slot 3 and then slot 0; each test looks at what the others wrote down meanwhile.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs import TOOL, Job, run

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

SCRIPT = """
import json, os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
import closeranks
torch.set_num_threads(1)
dist.init_process_group("closeranks")
rank, world = dist.get_rank(), dist.get_world_size()
def lose(*slots):
    "Those slots are killed; the others go on, all after the same barrier, when they no longer contribute."
    if rank in slots:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        dist.barrier()
        if not set(slots) & set(closeranks.last_contributors()):
            return
        time.sleep(0.005)
facts = {"slot": rank}
def report(**more):
    facts.update(more)
    open(sys.argv[1] + f"/slot-{rank}.json", "w").write(json.dumps(facts))

strict, lenient = dist.new_group(), dist.new_group()
closeranks.set_policy(lenient, "repair")
for group in (strict, lenient):
    dist.barrier(group=group)

# Gradients, by all and then without slot 3.
linear = closeranks.data_parallel(nn.Linear(3, 1, bias=False))
def gradient():
    linear.zero_grad()
    linear(torch.full((1, 3), float(rank + 1))).sum().backward()
    return linear.module.weight.grad[0, 0].item()
norm = closeranks.data_parallel(nn.BatchNorm1d(2))
before = gradient()
lose(3)
after = gradient()
buckets = [op.contributors for op in closeranks.recent_ops(linear.process_group) if op.kind == "all_reduce"]
report(before=before, after=after, contributors=buckets[-1])

# Object collectives.
everything = [1] * world
dist.all_gather_object(everything, {"rank": rank})
gathered = [1] * world if rank == 1 else None
dist.gather_object({"rank": rank}, gathered, dst=1)
shared = [rank]
dist.broadcast_object_list(shared, src=1)
whole = torch.ones(2 * world)
dist.all_gather_into_tensor(whole, torch.full((2,), rank + 1.0))
report(everything=everything, gathered=gathered, shared=shared, whole=whole.tolist(),
       object_contributors=closeranks.last_contributors())

# Buffers without slot 0, and what only it could give.
lose(0)
for step in range(3):
    norm(torch.full((4, 2), float(rank)) + torch.arange(4.0)[:, None]).sum().backward()
held = norm.module.running_mean.tolist()
# The next forward pass begins with the broadcast of slot 1's statistics.
norm._sync_buffers()
report(held=held, mean=norm.module.running_mean.tolist())
try:
    dist.broadcast(torch.ones(3), src=0)
except closeranks.PeerLost as error:
    report(broadcast=str(error).splitlines()[0], broadcast_slot=error.slot)

# A model built while two slots are vacant.
torch.manual_seed(rank)
model = closeranks.data_parallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
for step in range(4):
    model.zero_grad()
    model(torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * rank + step))).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
report(weights=weights.tolist(), present=closeranks.present(model.process_group))

# Groups with a policy of their own.
tensor = torch.ones(50_000)
dist.all_reduce(tensor, group=lenient)
try:
    dist.all_reduce(torch.ones(4), group=strict)
except closeranks.PeerLost as error:
    report(sum=tensor[0].item(), strict=str(error).splitlines()[0])
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("data_parallel")
    (folder / "script.py").write_text(SCRIPT)
    return run(folder, [str(folder / "script.py"), str(folder)])


def test_the_others_come_to_the_end(job: Job) -> None:
    assert job.status == 0, job.output
    assert job.excluded() == {0, 3}
    assert sorted(job.results) == [0, 1, 2], "slot 0 had written something before"


def test_gradients_are_averaged_over_contributors(job: Job) -> None:
    for slot in (0, 1, 2):
        assert job.results[slot]["before"] == pytest.approx(2.5)
        assert job.results[slot]["after"] == pytest.approx(2.0)
        assert job.results[slot]["contributors"] == [0, 1, 2]


def test_object_collectives_give_none_for_a_vacant_slot(job: Job) -> None:
    expected = [{"rank": 0}, {"rank": 1}, {"rank": 2}, None]
    for slot in (0, 1, 2):
        assert job.results[slot]["everything"] == expected
        assert job.results[slot]["shared"] == [1]
        assert job.results[slot]["whole"] == [1, 1, 2, 2, 3, 3, 0, 0]
        assert job.results[slot]["object_contributors"] == [0, 1, 2]
    assert job.results[1]["gathered"] == expected
    assert job.output.count("said once per group") == 3


def test_buffers_come_from_the_lowest_present_slot(job: Job) -> None:
    for slot in (1, 2):
        assert job.results[slot]["mean"] == job.results[1]["held"]
    assert job.results[2]["held"] != job.results[1]["held"]


def test_a_broadcast_from_a_vacant_slot_is_the_named_error(job: Job) -> None:
    for slot in (1, 2):
        assert "slot 0" in job.results[slot]["broadcast"]
        assert job.results[slot]["broadcast_slot"] == 0


def test_a_model_built_while_slots_are_vacant(job: Job) -> None:
    assert job.results[1]["weights"] == job.results[2]["weights"]
    assert job.results[1]["present"] == [1, 2]


def test_subgroups_fail_unless_told_otherwise(job: Job) -> None:
    for slot in (1, 2):
        assert job.results[slot]["sum"] == 2
        assert re.search("slot [03]", job.results[slot]["strict"])
