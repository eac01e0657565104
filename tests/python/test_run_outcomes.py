"""`closeranks run`: how jobs end, what is said of it, and that nothing is left behind. Plain scripts, no torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from jobs import TOOL, Running, leftovers, run


def script(folder: Path, text: str) -> list[str]:
    path = folder / "worker.py"
    path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text)
    return [str(path)]


def until_end(folder: Path) -> str:
    """A worker that runs until the test says so."""
    return f"print('up')\nwhile not os.path.exists('{folder}/end'): time.sleep(0.02)\n"


def test_all_finish(tmp_path: Path) -> None:
    job = run(tmp_path, script(tmp_path, "print('done')"), workers=3, flags=())
    assert job.status == 0
    assert [line for line in job.output.splitlines() if "done" in line] and job.output.count("done") == 3
    assert len(job.of("worker_exited")) == 3
    assert job.events[-1]["event"] == "job_finished"


def test_an_error_on_all_workers_is_shown_once(tmp_path: Path) -> None:
    job = run(tmp_path, script(tmp_path, "raise ValueError('everywhere')"), workers=4, flags=())
    assert job.status == 1
    assert job.output.count("ValueError: everywhere") == 1
    assert re.search(r"the same error as on slot \d on slots \d, \d and \d", job.output)
    assert "exit status 1" in job.output
    assert job.seconds < 30


def test_a_syntax_error_is_shown_once(tmp_path: Path) -> None:
    job = run(tmp_path, script(tmp_path, "def f(:\n"), workers=4)
    assert job.status == 1
    assert job.output.count("SyntaxError") == 1


def test_a_missing_script_is_told_once(tmp_path: Path) -> None:
    job = run(tmp_path, [str(tmp_path / "missing.py")], workers=3, flags=())
    assert job.status == 2
    assert job.output.count("can't open file") == 1


def test_one_workers_exception_ends_the_job_with_its_status(tmp_path: Path) -> None:
    body = "if rank == 1:\n    sys.exit(7)\ntime.sleep(100)"
    job = run(tmp_path, script(tmp_path, body), workers=3, flags=())
    assert job.status == 7
    assert "slot 1 (worker 1, pid " in job.output
    assert "exited with status 7; the job ends" in job.output
    assert 4 < job.seconds < 60, "the others have the time to see the error, and no more"


def test_with_shrink_the_others_go_on(tmp_path: Path) -> None:
    body = "if rank == 1:\n    raise ValueError('alone')\ntime.sleep(1.5)\nprint('finished', rank)"
    job = run(tmp_path, script(tmp_path, body), workers=3)
    assert job.status == 0, job.output
    assert job.output.count("ValueError: alone") == 1
    assert re.search(r"slot 1 \(worker 1, pid \d+\) exited with status 1; slots 0 and 2 go on", job.output)
    assert "the job finished on slots 0 and 2" in job.output
    assert job.excluded() == {1}
    excluded = job.of("worker_excluded")[0]
    started = next(e for e in job.of("worker_started") if e["slot"] == 1)
    assert excluded["worker"] == started["worker"]


@pytest.mark.parametrize("shrink", [True, False])
def test_a_killed_worker(tmp_path: Path, shrink: bool) -> None:
    job = Running(tmp_path, script(tmp_path, until_end(tmp_path)), 3, ("--shrink",) if shrink else ())
    job.wait_for("up", 3)
    os.kill(job.pid(2), signal.SIGKILL)
    job.wait_for("was killed by signal 9 (SIGKILL)")
    (tmp_path / "end").touch()
    status = job.end()
    assert status == (0 if shrink else 137), job.lines
    text = "\n".join(job.lines)
    assert "was killed by signal 9 (SIGKILL)" in text
    assert ("slots 0 and 1 go on" in text) == shrink


def test_below_min_present_the_job_ends(tmp_path: Path) -> None:
    job = Running(tmp_path, script(tmp_path, "print('up')\ntime.sleep(100)\n"), 3, ("--shrink", "--min-present", "2"))
    job.wait_for("up", 3)
    os.kill(job.pid(0), signal.SIGKILL)
    job.wait_for("slots 1 and 2 go on")
    os.kill(job.pid(1), signal.SIGTERM)
    assert job.end() == 137
    assert any(e["event"] == "gave_up" for e in job.events())


def test_every_worker_dies(tmp_path: Path) -> None:
    body = "os.kill(os.getpid(), [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM][rank])"
    job = run(tmp_path, script(tmp_path, body), workers=3)
    assert job.status in (137, 139, 143)
    for name in ("SIGKILL", "SIGSEGV", "SIGTERM"):
        assert name in job.output


def test_a_stop_of_one_second_is_nothing(tmp_path: Path) -> None:
    job = Running(tmp_path, script(tmp_path, until_end(tmp_path)), 2, ("--stop-timeout", "2"))
    job.wait_for("up", 2)
    os.kill(job.pid(1), signal.SIGSTOP)
    time.sleep(1)
    os.kill(job.pid(1), signal.SIGCONT)
    time.sleep(1.5)  # the time it was stopped is not added up
    (tmp_path / "end").touch()
    assert job.end() == 0
    assert not [e for e in job.events() if e["event"] == "worker_suspected"]


def test_a_stop_for_good_is_a_kill(tmp_path: Path) -> None:
    job = Running(tmp_path, script(tmp_path, until_end(tmp_path)), 2, ("--shrink", "--stop-timeout", "1"))
    job.wait_for("up", 2)
    os.kill(job.pid(1), signal.SIGSTOP)
    job.wait_for("slot 0 goes on")
    (tmp_path / "end").touch()
    assert job.end() == 0, job.lines
    assert "has been stopped for 1." in "\n".join(job.lines)
    suspected = [e for e in job.events() if e["event"] == "worker_suspected"]
    assert suspected and str(suspected[0]["reason"]).startswith("stopped for 1.")
    assert [e["slot"] for e in job.events() if e["event"] == "worker_excluded"] == [1]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_agent_ends_the_workers_in_order(tmp_path: Path, number: int, status: int) -> None:
    body = (
        "def bye(*_):\n    print('goodbye', rank)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\nprint('up')\ntime.sleep(100)\n"
    )
    job = Running(tmp_path, script(tmp_path, body), 2)
    job.wait_for("up", 2)
    job.process.send_signal(number)
    assert job.end() == status
    text = "\n".join(job.lines)
    assert text.count("goodbye") == 2
    assert f"ended by {signal.Signals(number).name}; exit status {status}" in text


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(100)\n"
    job = Running(tmp_path, script(tmp_path, body), 2)
    job.wait_for("up", 2)
    start = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    job.wait_for("SIGINT: the workers are asked to end")
    time.sleep(0.3)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert time.monotonic() - start < 10, "well before SIGTERM would have been followed by SIGKILL"


def test_whole_trees_are_killed(tmp_path: Path) -> None:
    body = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "forked = os.fork()\n"
        "if forked == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(1000)\n    os._exit(0)\n"
        "print('tree', child.pid)\n"
        "time.sleep(1000)\n"
    )
    job = Running(tmp_path, script(tmp_path, body), 2)
    job.wait_for("tree", 2)
    os.kill(job.pid(0), signal.SIGKILL)
    time.sleep(0.2)
    job.process.send_signal(signal.SIGTERM)
    job.end()
    children = [int(line.split()[-1]) for line in job.lines if "] tree" in line]
    assert not leftovers(children)
    job_id = re.search(r"job (\S+):", "\n".join(job.lines))
    assert job_id is not None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            assert f"CLOSERANKS_JOB={job_id.group(1)}".encode() not in environment, entry.name


def test_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    body = "print('port', os.environ['MASTER_PORT'], os.environ['CLOSERANKS_COORDINATOR'])\ntime.sleep(1)"
    jobs = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        jobs.append(Running(folder, script(folder, body), 2, ("--rdzv-id", "same")))
    assert [job.end() for job in jobs] == [0, 0]
    ports = [{line[4:] for line in job.lines if "port" in line} for job in jobs]
    assert len(ports[0]) == 1 and len(ports[1]) == 1 and ports[0] != ports[1]


def test_output_comes_in_whole_lines(tmp_path: Path) -> None:
    body = (
        "for turn in range(300):\n"
        "    os.write(1, b'begin-%d ' % rank); os.write(1, b'x' * 50); os.write(1, b' end-%d\\n' % rank)\n"
        "    os.write(2, b'err-%d\\n' % rank)\n"
        "os.write(1, bytes(range(256)) + b'\\n')\n"
        "os.write(1, b'y' * 200000 + b'\\n')\n"
        "os.write(1, b'last')\n"
    )
    command = [TOOL, "run", "--nproc-per-node", "3", "--log-dir", str(tmp_path / "log"), *script(tmp_path, body)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    lines = done.stdout.split(b"\n")
    for slot in range(3):
        whole = b"[%d] begin-%d %s end-%d" % (slot, slot, b"x" * 50, slot)
        assert lines.count(whole) == 300
        assert lines.count(b"[%d] last" % slot) == 1
        assert done.stderr.split(b"\n").count(b"[%d] err-%d" % (slot, slot)) == 300
    assert b"\x1b[3" not in done.stdout, "no colour when not a terminal"
    assert done.stdout.count(b"y") == 3 * 200001
    assert max(len(line) for line in lines) < 70000
    log = next((tmp_path / "log").iterdir()) / "slot-1.stdout.log"
    assert log.read_bytes().endswith(b"last")


def test_redirected_and_filtered_output(tmp_path: Path) -> None:
    body = "print('out', rank); print('err', rank, file=sys.stderr)"
    job = run(tmp_path, script(tmp_path, body), workers=3, flags=("-r", "0:1", "--local-ranks-filter", "0,1"))
    assert "[0] out" not in job.output and "[0] err 0" in job.output
    assert "[1] out 1" in job.output and "2] " not in job.output


def test_events_are_appended_as_whole_json_lines(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text('{"event":"before"}\n')
    job = run(tmp_path, script(tmp_path, "sys.exit(3 if rank == 1 else 0)"), workers=2)
    assert job.events[0] == {"event": "before"}
    for event in job.events[1:]:
        assert isinstance(event["time"], float) and abs(event["time"] - time.time()) < 100
    for name in ("worker_started", "worker_exited", "worker_suspected", "worker_excluded", "view_installed"):
        assert job.of(name), name
    for event in job.of("worker_started") + job.of("worker_excluded") + job.of("worker_exited"):
        assert event["worker"] == event["slot"]
    assert job.of("worker_exited")[0]["reason"].startswith("exited with status ")
    assert job.of("job_finished")[0]["detail"] == "exit status 0"
