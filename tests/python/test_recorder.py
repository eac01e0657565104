"""The flight recorder in real processes: what a killed worker leaves, a full disk, marks, exceptions, --check-nan.

The files are read as docs/recorder.md has them (ring_files.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobs
import ring_files

SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

torch.set_num_threads(1)
dist.init_process_group("closeranks")
import closeranks

rank, case = dist.get_rank(), sys.argv[1]
if case == "child":  # as a data loader or a tool of the worker's: not this worker
    os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", "import closeranks; closeranks.mark('child')"])
for _ in range(5):
    dist.all_reduce(torch.ones(2, 3))
dist.all_reduce(torch.ones(400, 500), async_op=True).wait()
closeranks.mark("half way", step=7)
for batch in DataLoader(list(range(4)), batch_size=2):
    pass
if case == "kill" and rank == 1:
    time.sleep(0.6)
    os.kill(os.getpid(), signal.SIGKILL)
if case == "raise" and rank == 1:
    raise ValueError("no such thing")
tensor = torch.ones(50)
if case == "nan" and rank == 1:
    tensor[17] = float("nan")
dist.all_reduce(tensor)
dist.all_reduce(tensor)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def rings_of(folder: Path) -> dict[int, ring_files.Ring]:
    return {ring.slot: ring for ring in map(ring_files.read, folder.glob("slot-*.ring"))}


def agent_of(folder: Path) -> ring_files.Ring:
    (path,) = folder.glob("agent-*.ring")
    return ring_files.read(path)


def test_an_ordinary_run(tmp_path: Path, script: Path) -> None:
    job = jobs.run(tmp_path, [str(script), "child"], workers=2)
    assert job.status == 0, job.output
    (folder,) = (tmp_path / "log").glob("*/trace")
    assert sorted(path.name for path in folder.glob("slot-*")) == ["slot-0-worker-0.ring", "slot-1-worker-1.ring"]
    rings = rings_of(folder)
    for slot, ring in rings.items():
        assert (ring.slot, ring.worker, ring.ended) == (slot, slot, True)
        (group,) = ring.groups
        assert (group.name, group.members, group.entered, group.completed) == ("world", [0, 1], 8, 8)
        finished = {op.sequence for op in ring.ops if op.record in ("small", "finished")}
        assert finished == set(range(8))
        shapes = {op.sequence: op.shape for op in ring.ops if op.shape}
        assert (shapes[0], shapes[5], shapes[7]) == ("[2, 3]", "[400, 500]", "[50]")
        assert [event.detail for event in ring.of("mark")] == ["half way"]
        assert [event.number for event in ring.of("step")] == [7]
        # Two batches, and the end of them.
        assert [event.number for event in ring.of("loading")] == [1, 0] * 3
        assert [event.kind for event in ring.events][-1] == "ended"
        assert len(ring.of("group_made")) == 1
    agent = agent_of(folder)
    assert agent.job == rings[0].job
    assert sorted(event.slots for event in agent.of("worker_exited")) == [[0], [1]]
    assert agent.ended


def test_a_killed_worker_leaves_a_readable_file(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "traces"
    job = jobs.run(tmp_path, [str(script), "kill"], workers=2, flags=("--trace-dir", str(folder)))
    assert job.status == 137, job.output
    rings = rings_of(folder)
    dead, other = rings[1], rings[0]
    assert not dead.ended
    assert (dead.groups[0].entered, dead.groups[0].completed) == (6, 6)
    assert dead.groups[0].current is None or dead.groups[0].current.sequence < 6
    assert [event.detail for event in dead.of("mark")] == ["half way"]
    # The other one waited, said so, and was told why its op failed.
    assert (other.groups[0].entered, other.groups[0].completed) == (7, 6)
    waiting = other.of("waiting")
    assert waiting and waiting[-1].slots == [1] and waiting[-1].number == 6
    assert [op.sequence for op in other.ops if op.record == "failed"] == [6]
    assert "slot 1" in next(op.failure for op in other.ops if op.record == "failed")
    assert other.of("exception")[0].detail.startswith("closeranks.errors.PeerLost: slot 1")
    exits = {tuple(event.slots): event for event in agent_of(folder).of("worker_exited")}
    assert exits[1,].number == 9 and "SIGKILL" in exits[1,].detail
    assert not agent_of(folder).of("out_of_memory")


def test_an_exception_with_its_stack(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "traces"
    job = jobs.run(tmp_path, [str(script), "raise"], workers=2, flags=("--trace-dir", str(folder)))
    assert job.status == 1
    (error,) = rings_of(folder)[1].of("exception")
    assert error.detail == "ValueError: no such thing"
    assert "train.py" in error.stack and 'raise ValueError("no such thing")' in error.stack
    assert "ValueError: no such thing" in job.output  # python's own hook still speaks


def test_check_nan_names_slot_op_and_element(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "traces"
    flags = ("--trace-dir", str(folder), "--check-nan")
    job = jobs.run(tmp_path, [str(script), "nan"], workers=2, flags=flags)
    assert job.status == 0, job.output
    rings = rings_of(folder)
    first = rings[1].of("not_finite")[0]
    assert (first.slots, first.number, first.detail) == ([1], 6, "NaN at element 17")
    # The sum has taken it to the other one.
    assert [event.number for event in rings[0].of("not_finite")] == [7]
    assert "slot 1: NaN at element 17 of its input of all_reduce #6 of group 'world'" in job.output


def test_record_stacks_tells_the_line_of_each_op(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "traces"
    job = jobs.run(tmp_path, [str(script), "plain"], workers=2, flags=("--trace-dir", str(folder), "--record-stacks"))
    assert job.status == 0, job.output
    called = [number for number, line in enumerate(SCRIPT.splitlines(), 1) if "dist.all_reduce" in line]
    lines = [called[0]] * 5 + called[1:]
    for ring in rings_of(folder).values():
        stacks = {op.sequence: op.stack for op in ring.ops if op.record == "issued"}
        assert stacks == {number: f'File "{script}", line {line} in <module>' for number, line in enumerate(lines)}, (
            "small ops and large ones"
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 900 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs CAP_SYS_ADMIN: a file system to fill up")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_nobody(tmp_path: Path, script: Path, small_disk: Path) -> None:
    job = jobs.run(tmp_path, [str(script), "plain"], workers=3, flags=("--trace-dir", str(small_disk)))
    assert job.status == 0, job.output
    files = list(small_disk.glob("*.ring"))
    assert files and all(path.stat().st_size < 900_000 for path in files)
    for path in files:
        ring_files.read(path)
    assert "little of this process is recorded" in job.output or "nothing of this process is recorded" in job.output
    (small_disk / "rest").write_bytes(bytes(900_000 - sum(path.stat().st_size for path in files) - 40_000))
    again = jobs.run(tmp_path, [str(script), "plain"], workers=2, flags=("--trace-dir", str(small_disk)))
    assert again.status == 0, again.output
    assert again.output.count("nothing of this process is recorded") == 2
    assert "closeranks: nothing is recorded here" in again.output


def test_torchrun_with_a_folder(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "traces"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "CLOSERANKS_TRACE_DIR": str(folder), "CLOSERANKS_TRACE_BYTES": "262144"}
    for _ in range(2):
        subprocess.run([*command, str(script), "plain"], check=True, env=environment, timeout=120)
    # The second run's files stand beside the first one's.
    assert sorted(path.name for path in folder.glob("*")) == [
        f"slot-{slot}-worker-{slot}{again}.ring" for slot in (0, 1) for again in (".2", "")
    ]
    for path in folder.glob("*"):
        assert path.stat().st_size == 262144
        ring = ring_files.read(path)
        assert ring.ended and ring.groups[0].completed == 8
