"""The processes that are measured, and how the bench speaks with them.

A side is one library in one set of processes (ours from C++, torch over ours, Gloo, Open MPI). Each process connects to
the bench's unix socket and waits for commands in a blocking read, so that it costs the others nothing while they are
measured. The commands are described in tools/bench_loop.h; torch_worker.py has the same in Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

# A process must have said hello after so long (a cold torch on a busy machine takes 12 s), and answered a command.
START_S = 120.0
ANSWER_S = 180.0
END_S = 15.0


class BenchError(Exception):
    """One sentence for the user."""


class Refusal(Exception):
    """A side cannot do what it was asked to, and says why."""


class Connection:
    """One process: lines of text in both directions."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.pending = b""

    def say(self, line: str) -> None:
        self.socket.sendall(line.encode() + b"\n")

    def hear(self, deadline: float) -> str | None:
        """The next line; None: the process is gone. Raises TimeoutError."""
        while b"\n" not in self.pending:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            received = self.socket.recv(65536)
            if not received:
                return None
            self.pending += received
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode()


@dataclass
class Job:
    """How a side's processes are started: one command (a launcher), or one per process."""

    name: str
    processes: int
    commands: list[list[str]]
    environment: dict[str, str] = field(default_factory=dict)


class Side:
    """The processes of one library, in rank order."""

    def __init__(self, name: str, processes: int, started: list[subprocess.Popen[bytes]], log: Path) -> None:
        self.name = name
        self.started = started
        self.log = log
        self.connections: list[Connection | None] = [None] * processes

    def complete(self) -> bool:
        return all(self.connections)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        words = "\n".join(line for line in lines if line.strip())[-2000:]
        return f"; its last words:\n{words}" if words else ""

    def command(self, line: str) -> list[list[str]]:
        """Gives all processes the same command; the words each answers after "ok". Raises Refusal, BenchError."""
        self.begin(line)
        return list(self.answers(line).values())

    def begin(self, line: str) -> None:
        """Gives the command and does not wait: answers() does."""
        for connection in self.connections:
            with contextlib.suppress(OSError):  # one that is gone gives no answer, later
                if connection is not None:
                    connection.say(line)

    def answers(self, line: str, without: int | None = None) -> dict[int, list[str]]:
        """By rank, what the processes answer to `line`; of the process `without` none is expected."""
        deadline = time.monotonic() + ANSWER_S
        answers = {}
        refusals = []
        for rank, connection in enumerate(self.connections):
            if connection is None or rank == without:
                continue
            try:
                answer = connection.hear(deadline)
            except TimeoutError:
                raise BenchError(f"rank {rank} of {self.name} does not answer '{line}' for {ANSWER_S:.0f} s") from None
            except OSError:
                answer = None
            if answer is None:
                raise BenchError(f"rank {rank} of {self.name} ended at '{line}'{self.last_words()}")
            kind, _, rest = answer.partition(" ")
            if kind == "error":
                raise BenchError(f"rank {rank} of {self.name}: {rest}")
            if kind == "no":
                refusals.append(rest)
            answers[rank] = rest.split()
        if refusals:
            raise Refusal(refusals[0])
        return answers

    def prepare(self, identity: str, op: str, bytes_: int, memory: str = "private", variant: str = "default") -> str:
        """Makes the op ready under `identity`, checked on known values; the memory it really works on."""
        return self.command(f"prepare {identity} {op} {bytes_} {memory} {variant}")[0][0]

    def round(self, identity: str, runs: int) -> float:
        """Seconds per op of `runs` runs, on the slowest process."""
        return max(float(words[0]) for words in self.command(f"round {identity} {runs}"))

    def singles(self, identity: str, runs: int) -> list[list[float]]:
        """Seconds of single ops, for each process."""
        return [[float(word) for word in words] for words in self.command(f"singles {identity} {runs}")]

    def explain(self, identity: str) -> str:
        return " ".join(self.command(f"explain {identity}")[0])

    def variants(self, op: str) -> list[str]:
        return self.command(f"variants {op}")[0]

    def release(self) -> None:
        self.command("release")

    def end(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            for connection in self.connections:
                if connection is not None:
                    connection.say("end")
        deadline = time.monotonic() + END_S
        for process in self.started:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    process.send_signal(number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=5)
                        break
        for connection in self.connections:
            if connection is not None:
                connection.socket.close()


class Sides:
    """Starts jobs and gathers their processes; a context manager that ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sides: dict[str, Side] = {}
        self.path = folder / "socket"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen(256)

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for side in self.sides.values():
            side.end()
        self.listener.close()

    def start(self, job: Job) -> Side:
        """Starts the processes of a job; they come in while gather() waits."""
        log = self.folder / f"{job.name}.log"
        started = []
        for rank, command in enumerate(job.commands):
            own = {"CLOSERANKS_BENCH_SOCKET": str(self.path), "CLOSERANKS_BENCH_SIDE": job.name}
            if len(job.commands) > 1:
                own |= {"RANK": str(rank), "WORLD_SIZE": str(len(job.commands))}
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **job.environment, **own},
                )
            started.append(process)
        side = Side(job.name, job.processes, started, log)
        self.sides[job.name] = side
        return side

    def gather(self) -> None:
        """Waits until every process of every side has said hello. Raises BenchError."""
        deadline = time.monotonic() + START_S
        self.listener.settimeout(0.2)
        while missing := [side for side in self.sides.values() if not side.complete()]:
            for side in missing:
                ended = [process.returncode for process in side.started if process.poll() is not None]
                if ended:
                    raise BenchError(f"{side.name} did not start (exit status {ended[0]}){side.last_words()}")
            if time.monotonic() > deadline:
                names = ", ".join(side.name for side in missing)
                raise BenchError(f"{names} did not start within {START_S:.0f} s{missing[0].last_words()}")
            with contextlib.suppress(TimeoutError):
                self.welcome(Connection(self.listener.accept()[0]), deadline)

    def welcome(self, connection: Connection, deadline: float) -> None:
        hello = connection.hear(deadline)
        if hello is None:
            return
        _, name, rank = hello.split()
        self.sides[name].connections[int(rank)] = connection
