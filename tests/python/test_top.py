"""`closeranks top`: what it shows of a running job, on a pipe and in a terminal, and how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from jobs import TOOL, Running

STEPS = """
import os, time
import torch, torch.distributed as dist, closeranks
torch.set_num_threads(1)
dist.init_process_group("closeranks")
for step in range(100000):
    closeranks.mark("", step=step)
    dist.all_reduce(torch.ones(10))
    if step == 3:
        print("up", flush=True)
    time.sleep(0.05)
"""


def once(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOL, "top", *arguments], capture_output=True, text=True, timeout=60, check=False)


class Terminal:
    """`closeranks top` in a terminal of a given size."""

    def __init__(self, arguments: list[str], columns: int, lines: int) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [TOOL, "top", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        self.modes_before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.shown = ""

    def read_until(self, text: str, times: int = 1, seconds: float = 30) -> None:
        """Reads on until `text` is there so often."""
        os.set_blocking(self.ours, False)
        self.shown = ""
        deadline = time.monotonic() + seconds
        while self.shown.count(text) < times:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown[-2000:]!r}"
            with contextlib.suppress(BlockingIOError):
                self.shown += os.read(self.ours, 65536).decode()
            time.sleep(0.02)

    def lines(self) -> list[str]:
        """Of the newest whole frame."""
        frame = self.shown.split("\x1b[H")[-2]
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", line) for line in frame.split("\n")]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=10)
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def job(tmp_path: Path) -> Running:
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    running = Running(tmp_path, [str(script)], workers=2)
    running.wait_for("up", times=2)
    return running


def test_top_of_a_running_job(job: Running, tmp_path: Path) -> None:
    found = once("--once", "--log-dir", str(tmp_path / "log"))
    assert found.returncode == 0, found.stderr
    rows = [line for line in found.stdout.splitlines() if re.match(r" +[01]  ", line)]
    assert len(rows) == 2 and "slot" in found.stdout and "verdict: " in found.stdout
    assert all(re.search(r"\d+ ms +\d+ %", row) and "all_reduce" in row for row in rows), found.stdout

    # A narrow terminal: nothing is longer than it is wide, and q gives the terminal back as it was.
    terminal = Terminal(["--log-dir", str(tmp_path / "log"), "--interval", "0.2"], columns=40, lines=12)
    try:
        terminal.read_until("\x1b[H", times=3)
        lines = terminal.lines()
        assert any(line.startswith("slot") and line.endswith("doing") for line in lines)
        assert all(len(line) <= 40 for line in lines) and len(lines) <= 12
        os.write(terminal.ours, b"q")
        assert terminal.process.wait(timeout=10) == 0
        terminal.read_until("\x1b[?1049l")
        assert termios.tcgetattr(terminal.theirs) == terminal.modes_before
    finally:
        terminal.close()

    # Ctrl-C, and an end from outside.
    for number in (signal.SIGINT, signal.SIGTERM):
        terminal = Terminal(["--log-dir", str(tmp_path / "log")], columns=100, lines=30)
        try:
            terminal.read_until("verdict: ")
            terminal.process.send_signal(number)
            assert terminal.process.wait(timeout=10) == 0
            terminal.read_until("\x1b[?1049l")
        finally:
            terminal.close()

    # Who is stopped is seen.
    os.kill(job.pid(1), signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 4
        text = ""
        while "VERDICT: slot 1" not in text and time.monotonic() < deadline:
            text = once("--once", "--log-dir", str(tmp_path / "log")).stdout
        assert "VERDICT: slot 1" in text and "stopped" in text
    finally:
        os.kill(job.pid(1), signal.SIGCONT)


def test_top_without_a_job(tmp_path: Path) -> None:
    found = once("--once", "--log-dir", str(tmp_path))
    assert found.returncode == 1 and "no job runs" in found.stderr
    found = once(str(tmp_path / "missing"))
    assert found.returncode == 1 and "there is no folder" in found.stderr
    found = once("--interval", "nonsense")
    assert found.returncode == 2
