"""A spare outside of any job: it becomes the script it is told to, and leaves the next spare behind."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PR_SET_CHILD_SUBREAPER = 36
WARM_SPARE = [sys.executable, "-u", "-c", "import closeranks.spare as s; s.main()"]
SPARE = [sys.executable, "-u", "-c", "import closeranks.spare as s; s.WARM = (); s.main()"]


def orders(variables: dict[str, str], *command: str) -> bytes:
    """To become `command`, in this process's environment and `variables`."""
    everything = {**os.environb, **{os.fsencode(name): os.fsencode(value) for name, value in variables.items()}}
    environment = b"".join(name + b"=" + value + b"\0" for name, value in everything.items())
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    return struct.pack("<II", len(environment), len(words)) + environment + words


class SpareChain:
    """A spare outside of any job, and the successors that it and they leave behind."""

    def __init__(self, folder: Path, command: list[str] = SPARE) -> None:
        self.orders, its = socket.socketpair()
        self.process = subprocess.Popen(
            command,
            stdin=its.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "OF_THE_SPARE": "1"},
        )
        its.close()
        assert self.process.stdout is not None and self.process.stderr is not None
        self.streams = (self.process.stdout, self.process.stderr)
        self.pid = self.ready()
        assert self.pid == self.process.pid

    def ready(self) -> int:
        word, pid = self.orders.recv(32).split()
        assert word == b"ready"
        return int(pid)

    def become(self, *command: str, **variables: str) -> tuple[int, str, str]:
        """The status and output of `command`; from then on the chain is its successor's."""
        ours, its = socket.socketpair()
        (output, its_output), (errors, its_errors) = os.pipe(), os.pipe()
        streams = [its.fileno(), its_output, its_errors]
        socket.send_fds(self.orders, [orders(variables, *command)], streams)
        self.orders.close()
        its.close()
        os.close(its_output)
        os.close(its_errors)
        said = [stream.read().decode() for stream in self.streams]
        _, status = os.waitpid(self.pid, 0)
        if self.pid == self.process.pid:
            self.process.returncode = status  # it was waited for
        for stream in self.streams:
            stream.close()
        self.orders, self.streams = ours, (os.fdopen(output, "rb"), os.fdopen(errors, "rb"))
        self.pid = self.ready()
        return os.waitstatus_to_exitcode(status), said[0], said[1]

    def end(self) -> int:
        """Its agent is gone."""
        self.orders.close()
        for stream in self.streams:
            stream.close()
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def adopts() -> Iterator[None]:
    """Successors are orphans: children of this process for as long as the test lasts."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def chain(tmp_path: Path, adopts: None) -> SpareChain:
    return SpareChain(tmp_path)


def test_a_spare_becomes_the_script(chain: SpareChain, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "train.py").write_text(
        "import atexit, os, pickle, sys, beside\n"
        "class Thing: pass\n"
        "atexit.register(lambda: print('pickled', len(pickle.dumps(Thing())) > 0))\n"
        "print(__name__, sys.argv[1:], os.environ['RANK'], 'OF_THE_SPARE' in os.environ, beside.WORD)\n"
        "print('input', repr(sys.stdin.read()))\n"
        "if 'fail' in sys.argv: raise ValueError('of the script')\n"
        "if 'exit' in sys.argv: sys.exit(5)\n"
    )
    status, output, _ = chain.become("train.py", "a b", "c", RANK="3")
    assert status == 0
    assert output.splitlines() == ["__main__ ['a b', 'c'] 3 False beside", "input ''", "pickled True"]
    status, output, _ = chain.become("-m", "train", "x", RANK="2")
    assert status == 0
    assert output.splitlines()[0] == "__main__ ['x'] 2 False beside"
    assert output.splitlines()[-1] == "pickled True"
    assert chain.become("train.py", "exit", RANK="3")[0] == 5
    status, _, errors = chain.become("train.py", "fail", RANK="3")
    assert status == 1
    assert "ValueError: of the script" in errors
    assert "spare.py" not in errors, "the script's author knows nothing of it"
    assert chain.end() == 0


def test_successors_are_processes_of_their_own(chain: SpareChain, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, numpy\nprint(os.getpid(), os.getpgid(0), numpy.random.rand())\n")
    pid = chain.pid
    lines = []
    for _ in range(3):
        status, output, _ = chain.become("train.py", RANK="0")
        assert status == 0
        lines.append(output.split())
        assert chain.pid != pid and os.getpgid(chain.pid) == chain.pid
        pid = chain.pid
    assert all(number == group for number, group, _ in lines[1:])
    assert len({drawn for _, _, drawn in lines}) == 3, "random numbers of their own"
    assert chain.end() == 0


def test_a_warm_spare_ends_without_a_word(adopts: None, tmp_path: Path) -> None:
    chain = SpareChain(tmp_path, WARM_SPARE)
    (tmp_path / "train.py").write_text("import torch\ntorch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)\n")
    # What was imported by the spare is taken down as in any other worker: nothing calls it leaked.
    assert chain.become("train.py", RANK="0") == (0, "", "")
    assert chain.end() == 0


def test_a_spare_has_one_thread_when_it_is_ready() -> None:
    text = "import os, closeranks.spare as s; s.warm_up(); print(len(os.listdir('/proc/self/task')))"
    count = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert count.stdout.split()[-1] == "1"
