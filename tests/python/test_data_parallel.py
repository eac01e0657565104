"""closeranks.data_parallel and object collectives while slots are vacant, under `closeranks run --shrink`."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import TOOL, run

pytestmark = pytest.mark.skipif(not Path(TOOL).exists(), reason=f"the tool is not built: {TOOL}")

HEAD = """
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
def report(**facts):
    file = sys.argv[1] + f"/slot-{rank}.json"
    open(file, "w").write(json.dumps(dict(slot=rank, **facts)))
"""


def script(folder: Path, body: str) -> list[str]:
    file = folder / "script.py"
    file.write_text(HEAD + body)
    return [str(file), str(folder)]


def test_a_model_built_while_slots_are_vacant(tmp_path: Path) -> None:
    body = """
lose(0, 2)
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
"""
    job = run(tmp_path, script(tmp_path, body))
    assert job.status == 0, job.output
    assert sorted(job.results) == [1, 3]
    assert job.results[1]["weights"] == job.results[3]["weights"]
    assert job.results[1]["present"] == [1, 3]


def test_gradients_are_averaged_over_contributors(tmp_path: Path) -> None:
    body = """
model = closeranks.data_parallel(nn.Linear(3, 1, bias=False))
def gradient():
    model.zero_grad()
    model(torch.full((1, 3), float(rank + 1))).sum().backward()
    return model.module.weight.grad[0, 0].item()
before = gradient()
lose(3)
after = gradient()
buckets = [op.contributors for op in closeranks.recent_ops(model.process_group) if op.kind == "all_reduce"]
report(before=before, after=after, contributors=buckets[-1])
"""
    job = run(tmp_path, script(tmp_path, body))
    assert job.status == 0, job.output
    for slot in (0, 1, 2):
        assert job.results[slot]["before"] == pytest.approx(2.5)
        assert job.results[slot]["after"] == pytest.approx(2.0)
        assert job.results[slot]["contributors"] == [0, 1, 2]


def test_buffers_come_from_the_lowest_present_slot(tmp_path: Path) -> None:
    body = """
model = closeranks.data_parallel(nn.BatchNorm1d(2))
lose(0)
for step in range(3):
    model(torch.full((4, 2), float(rank)) + torch.arange(4.0)[:, None]).sum().backward()
held = model.module.running_mean.tolist()
# The next forward pass begins with the broadcast of slot 1's statistics.
model.eval()
model.train()
model._sync_buffers()
report(held=held, mean=model.module.running_mean.tolist())
"""
    job = run(tmp_path, script(tmp_path, body))
    assert job.status == 0, job.output
    for slot in (1, 2, 3):
        assert job.results[slot]["mean"] == job.results[1]["held"]


def test_object_collectives_give_none_for_a_vacant_slot(tmp_path: Path) -> None:
    body = """
lose(2)
everything = [1] * world
dist.all_gather_object(everything, {"rank": rank})
gathered = [1] * world if rank == 1 else None
dist.gather_object({"rank": rank}, gathered, dst=1)
shared = [rank]
dist.broadcast_object_list(shared, src=1)
whole = torch.ones(2 * world)
dist.all_gather_into_tensor(whole, torch.full((2,), rank + 1.0))
report(everything=everything, gathered=gathered, shared=shared, whole=whole.tolist(),
       contributors=closeranks.last_contributors())
"""
    job = run(tmp_path, script(tmp_path, body))
    assert job.status == 0, job.output
    expected = [{"rank": 0}, {"rank": 1}, None, {"rank": 3}]
    for slot in (0, 1, 3):
        assert job.results[slot]["everything"] == expected
        assert job.results[slot]["shared"] == [1]
        assert job.results[slot]["whole"] == [1, 1, 2, 2, 0, 0, 4, 4]
        assert job.results[slot]["contributors"] == [0, 1, 3]
    assert job.results[1]["gathered"] == expected
    assert job.output.count("said once per group") == 3


def test_a_broadcast_from_a_vacant_slot_is_the_named_error(tmp_path: Path) -> None:
    body = """
lose(0)
try:
    dist.broadcast(torch.ones(3), src=0)
except closeranks.PeerLost as error:
    report(line=str(error).splitlines()[0], slot_lost=error.slot)
"""
    job = run(tmp_path, script(tmp_path, body))
    assert job.status == 0, job.output
    assert sorted(job.results) == [1, 2, 3]
    for result in job.results.values():
        assert "slot 0" in result["line"]
        assert result["slot_lost"] == 0


def test_subgroups_fail_unless_told_otherwise(tmp_path: Path) -> None:
    body = """
strict, lenient = dist.new_group(), dist.new_group()
closeranks.set_policy(lenient, "repair")
for group in (strict, lenient):
    dist.barrier(group=group)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
tensor = torch.ones(50_000)
dist.all_reduce(tensor, group=lenient)
try:
    dist.all_reduce(torch.ones(4), group=strict)
except closeranks.PeerLost as error:
    report(sum=tensor[0].item(), line=str(error).splitlines()[0])
"""
    job = run(tmp_path, script(tmp_path, body))
    assert job.status == 0, job.output
    assert sorted(job.results) == [0, 2, 3]
    for result in job.results.values():
        assert result["sum"] == 3
        assert "slot 1" in result["line"]
