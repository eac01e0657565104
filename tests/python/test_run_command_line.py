"""`closeranks run`: flags, help, the dry run, and what a worker's environment is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from jobs import TOOL, run


def tool(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOL, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def script(folder: Path, text: str) -> str:
    path = folder / "worker.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--nproc-per-nod", "4", "a.py"], "did you mean --nproc-per-node?"),
        (["run", "--nnodes", "2", "a.py"], "one host for now"),
        (["run", "--nproc-per-node", "x", "a.py"], "auto, cpu, gpu or a number"),
        (["run"], "needs a script"),
        (["rum"], "did you mean run?"),
        (["frobnicate"], "closeranks --help"),
    ],
)
def test_a_wrong_call_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = tool(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_help_and_version() -> None:
    assert "closeranks run" in tool("--help").stdout
    assert tool().returncode == 0
    assert "--nproc-per-node" in tool("run", "--help").stdout
    assert tool("version").stdout.startswith("closeranks ")


def test_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, "open('started', 'w')")
    done = tool("run", "--nproc_per_node=3", "--shrink", "--min-present", "2", "--dry-run", path, "--x", "a b")
    assert done.returncode == 0, done.stderr
    assert f"-u {path} --x 'a b'" in done.stdout
    assert "WORLD_SIZE=3" in done.stdout
    assert "CLOSERANKS_POLICY=repair" in done.stdout
    assert "down to 2 (--min-present)" in done.stdout
    header = Path(__file__).resolve().parents[2] / "src/base/deadlines.h"
    for line in header.read_text().splitlines():
        if line.startswith("inline constexpr milliseconds "):
            name = line.split()[3].split("{")[0]
            value = line.split("{")[1].split("}")[0].replace("'", "")
            assert any(row.split()[:2] == [name, value] for row in done.stdout.splitlines()), line
    assert not (tmp_path / "started").exists()


def test_workers_have_torchruns_environment(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import json, os, sys\n"
        "print(json.dumps({'env': dict(os.environ), 'argv': sys.argv[1:], 'in': sys.stdin.read()}))\n",
    )
    job = run(
        tmp_path,
        [path, "--flag", "-m", "value"],
        workers=2,
        flags=("--rdzv-id", "my/run", "--role", "trainer", "--max-restarts", "2"),
        environment={"RANK": "17", "TORCHELASTIC_STALE": "x", "CLOSERANKS_TOKEN": "stale"},
    )
    assert job.status == 0, job.output
    seen = {}
    for line in job.output.splitlines():
        if line.startswith(("[0] {", "[1] {")):
            seen[int(line[1])] = json.loads(line[4:])
    assert set(seen) == {0, 1}
    for slot, report in seen.items():
        env = report["env"]
        assert report["argv"] == ["--flag", "-m", "value"]
        assert report["in"] == ""
        expected = {
            "RANK": str(slot),
            "LOCAL_RANK": str(slot),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(slot),
            "ROLE_NAME": "trainer",
            "LOCAL_WORLD_SIZE": "2",
            "WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "2",
            "TORCHELASTIC_RUN_ID": "my/run",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "CLOSERANKS_WORKER": str(slot),
            "CLOSERANKS_POLICY": "fail",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert env["CLOSERANKS_JOB"].startswith("my_run-")
        assert len(env["CLOSERANKS_TOKEN"]) == 64
        assert "TORCHELASTIC_STALE" not in env
        assert int(env["MASTER_PORT"]) > 0
    assert seen[0]["env"]["CLOSERANKS_TOKEN"] == seen[1]["env"]["CLOSERANKS_TOKEN"]


def test_module_and_program(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "thing.py").write_text("import sys; print('module', sys.argv[1:])")
    job = run(tmp_path, ["package.thing", "x"], workers=1, flags=("-m",), environment={"PYTHONPATH": str(tmp_path)})
    assert job.status == 0, job.output
    assert "[0] module ['x']" in job.output
    job = run(tmp_path, ["sh", "-c", "echo program $RANK"], workers=2, flags=("--no-python",))
    assert job.status == 0
    assert "[1] program 1" in job.output


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    job = run(tmp_path, ["no-such-program"], workers=2, flags=("--no-python",))
    assert job.status == 1
    assert "cannot start 'no-such-program'" in job.output


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = run(tmp_path, ["-c", "pass"], workers=1, flags=("--master-port", str(port), "--"))
    assert job.status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in job.output


def test_an_events_file_that_cannot_be_written(tmp_path: Path) -> None:
    done = tool("run", "--events", str(tmp_path / "no" / "such" / "e.jsonl"), "--log-dir", str(tmp_path), "a.py")
    assert done.returncode == 1
    assert "e.jsonl" in done.stderr


def test_the_default_log_folder_keeps_ten_jobs(tmp_path: Path) -> None:
    path = script(tmp_path, "import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr)")
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for _ in range(12):
        done = tool("run", "--nproc-per-node", "1", path, environment=environment)
        assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "state" / "closeranks").iterdir())
    assert len(folders) == 10
    newest = folders[-1]
    assert (newest / "slot-0.stdout.log").read_text() == "out 0\n"
    assert (newest / "slot-0.stderr.log").read_text() == "err\n"
    events = [json.loads(line) for line in (newest / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "job_finished"
    assert (newest.stat().st_mode & 0o777) == 0o700
