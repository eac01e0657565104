"""`closeranks trace` on dumps of torch's flight recorder: real ones of Gloo, and small ones made here."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from jobs import TOOL


def trace(*arguments: str | Path, status: int = 0, **environment: str) -> str:
    result = subprocess.run(
        [TOOL, "trace", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert result.returncode == status, result.stderr
    return result.stdout if status == 0 else result.stderr


def verdict(folder: Path, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(trace(folder, "--json", *arguments))["verdict"]
    return answer


def entry(sequence: int, *, kind: str = "all_reduce", size: int = 4, ended: bool = True) -> dict[str, Any]:
    return {
        "record_id": sequence - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{kind}",
        "time_created_ns": time.time_ns() - 60_000_000_000 + sequence * 1_000_000,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "completed" if ended else "started",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": ended,
        "is_p2p": False,
        "timeout_ms": 600000,
        "frames": [],
    }


def write_dump(folder: Path, rank: int, entries: list[dict[str, Any]], world: int = 3) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    dump = {"version": "2.10", "pg_config": config, "entries": entries}
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def write_stuck_job(folder: Path) -> None:
    """Rank 1 has not made the third call."""
    for rank in range(3):
        entries = [entry(1), entry(2)] + ([entry(3, ended=False)] if rank != 1 else [])
        write_dump(folder, rank, entries)


def test_who_has_not_come(tmp_path: Path) -> None:
    write_stuck_job(tmp_path)
    found = verdict(tmp_path)
    assert (found["kind"], found["slot"], found["group"], found["sequence"]) == ("stuck", 1, "default_pg", 3)
    assert "slot 1" in found["sentence"] and "all_reduce #3" in found["sentence"]


def test_the_minority_made_the_wrong_call(tmp_path: Path) -> None:
    for rank in range(3):
        write_dump(tmp_path, rank, [entry(1), entry(2, size=5 if rank == 2 else 4, ended=False)])
    found = verdict(tmp_path)
    assert (found["kind"], found["slot"], found["sequence"]) == ("wrong_shape", 2, 2)


def test_text_begins_with_the_verdict_and_fits(tmp_path: Path) -> None:
    write_stuck_job(tmp_path)
    text = trace(tmp_path, COLUMNS="80")
    assert text.startswith("stuck: slot 1 ")
    assert "\x1b" not in text
    table = text[text.index("\ngroup 'default_pg'") : text.index("\nfiles\n")]
    assert "not entered" in table
    assert max(map(len, table.splitlines())) <= 80


def test_what_is_missing_or_strange(tmp_path: Path) -> None:
    write_stuck_job(tmp_path)
    (tmp_path / "nccl_trace_rank_1").unlink()
    (tmp_path / "rank_9").write_bytes(b"\x80\x02cos\nsystem\nq\x00.")
    answer = json.loads(trace(tmp_path, "--json"))
    assert answer["verdict"]["kind"] == "no_culprit"
    assert answer["verdict"]["slot"] is None
    assert "slot 1 left no file" in answer["verdict"]["sentence"]
    assert any("more than plain data" in remark for remark in answer["remarks"])


def test_usage(tmp_path: Path) -> None:
    assert "no directory" in trace(tmp_path / "none", status=2)
    assert "no recorder's file" in trace(tmp_path, status=2)
    assert "required" in trace(status=2)


def test_torchfrtrace_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tabulate")
    write_stuck_job(tmp_path)
    trace(tmp_path, "--torch-fr", tmp_path / "out")
    module = "torch.distributed.flight_recorder.fr_trace"
    command = [sys.executable, "-m", module, str(tmp_path / "out")]
    table = subprocess.run([*command, "-j"], check=True, capture_output=True, text=True, timeout=120)
    assert (table.stdout + table.stderr).count("all_reduce(input_sizes=[[4]], state=completed)") == 6
    analysis = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "missing ranks: {1}" in analysis.stdout + analysis.stderr


def test_perfetto(tmp_path: Path) -> None:
    """The structure that the format's description asks for: Perfetto's own trace processor is fetched from the network
    when it is first used, so it opens the file only where that has happened.
    """
    write_stuck_job(tmp_path)
    trace(tmp_path, "--perfetto", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"slot 0", "slot 1", "slot 2"}
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 8
    for event in slices:
        assert event["ts"] >= 0 and event["dur"] > 0 and event["pid"] > 0 and event["tid"] > 0
    assert sum(event["args"].get("unfinished", False) for event in slices) == 2
    starts = {event["id"] for event in events if event["ph"] == "s"}
    assert starts == {event["id"] for event in events if event["ph"] == "f"}


def gloo_worker(rank: int, world: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    tensor = torch.ones(4, 3)
    for _ in range(3):
        dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True) if rank != 1 else None
    time.sleep(1.5)
    dump: Callable[..., bytes] = torch._C._distributed_c10d._dump_fr_trace  # type: ignore[attr-defined]
    Path(folder, f"gloo_{rank}").write_bytes(dump(backend="gloo"))
    del work
    os._exit(0)


def test_a_real_dump_of_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "200")
    mp.spawn(gloo_worker, (3, str(tmp_path)), nprocs=3)
    found = verdict(tmp_path)
    assert (found["kind"], found["slot"], found["sequence"]) == ("stuck", 1, 4), found
