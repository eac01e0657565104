"""`closeranks strike`: kills a worker inside an all_reduce, and proves by the op's words that it was there."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from jobs import TOOL, leftovers, pids_of

TRAINING = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("closeranks")
tensor = torch.ones(300_000)
print("up", flush=True)
end = time.monotonic() + 4
steps = 0
while True:
    tensor.fill_(1.0)
    go_on = torch.tensor([1 if time.monotonic() < end else 0])
    dist.all_reduce(tensor)
    dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
    if go_on.item() == 0:
        break
print("finished with", tensor[0].item(), flush=True)
dist.destroy_process_group()
"""


def strike(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOL, "strike", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_a_strike_hits_inside_an_all_reduce_and_the_others_finish(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    events = tmp_path / "events.jsonl"
    command = [TOOL, "run", "--nproc-per-node", "3", "--shrink", "--events", str(events)]
    command += ["--log-dir", str(tmp_path / "log"), str(script)]
    output = tmp_path / "output"
    with output.open("w") as file:
        job = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 120
            while output.read_text().count("] up") < 3:
                assert job.poll() is None and time.monotonic() < deadline, output.read_text()
                time.sleep(0.05)
            done = strike("--events", str(events), "--slot", "1", "--timeout", "20")
            assert done.returncode == 0, done.stderr
            struck = json.loads(done.stdout)
            assert job.wait(timeout=120) == 0, output.read_text()
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(timeout=30)
    records = [json.loads(line) for line in events.read_text().splitlines()]
    assert struck["op"] == "all_reduce"
    assert struck["slot"] == 1
    assert struck["pid"] == next(e["pid"] for e in records if e["event"] == "worker_started" and e["slot"] == 1)
    assert struck["entered"] == struck["sequence"] + 1
    assert 0 < struck["own_blocks"] <= struck["blocks"]
    assert struck["own_blocks_distributed_before"] < struck["own_blocks"]
    if struck["hit"]:
        assert struck["own_blocks_distributed_after"] < struck["own_blocks"]
        assert any(e["event"] == "op_repaired" for e in records)
    suspected = next(e for e in records if e["event"] == "worker_suspected" and e["slot"] == 1)
    assert 0 <= suspected["time"] - struck["kill_unix_ns"] / 1e9 < 5
    assert output.read_text().count("finished with 2.0") == 2
    assert not leftovers(pids_of(records))


def test_a_strike_says_why_it_cannot(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    missing = strike("--events", str(events), "--slot", "0")
    assert missing.returncode == 1
    assert "slot 0 does not run" in missing.stderr
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        record = {"event": "worker_started", "slot": 0, "worker": 0, "pid": sleeper.pid}
        events.write_text(json.dumps(record) + "\n")
        silent = strike("--events", str(events), "--slot", "0", "--timeout", "0.3")
        assert silent.returncode == 1
        assert "shows no segment of any group" in silent.stderr
        assert os.waitpid(sleeper.pid, os.WNOHANG) == (0, 0), "nobody is killed for it"
    finally:
        sleeper.kill()
        sleeper.wait()
