"""Every kind of verdict, from the files of real processes: `closeranks trace` names the slot that is at fault and how,
and no other at any moment. Also that the survivors' exceptions say it.

The jobs of all tests that run are started at the first one: some under `closeranks run`, a few at a time, and some as
plain processes, side by side in forks of one interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import memory_group
import silent_files
from jobs import TOOL

HERE = Path(__file__).resolve().parent
WORKERS = 3
CULPRIT = 1
NOBODY = None
PATIENCE_S = 60  # for a verdict, on a machine that does other things as well
AT_ONCE = 4
MEMORY_LIMIT = 1536 << 20


@dataclass(frozen=True)
class Case:
    kind: str
    slot: int | None = CULPRIT
    says: tuple[str, ...] = ()  # in the sentence or the evidence
    flags: tuple[str, ...] = ()
    told: bool = False  # the survivors' exceptions have the verdict


# The sentence names what the user needs: the signal, the exception, the function, the kernel's call, the calls.
UNDER_RUN = (
    Case("killed", says=("SIGKILL",)),
    Case("out_of_memory", says=("memory",)),
    Case("exception", says=("ValueError: batch 17 has no labels",)),
    Case("stopped", says=("stopped",)),
    Case("stuck", says=("fetch_the_vocabulary",), flags=("--hang-timeout", "5")),
    Case("uninterruptible", says=("request_wait_answer",)),
    Case("missing_call"),
    Case("wrong_order"),
    Case("left_early"),
    Case("nan", says=("17",), flags=("--check-nan",)),
    Case("data_starved", says=("data",)),
    Case("no_culprit", slot=NOBODY),
    Case("ok", slot=NOBODY),
)
PLAIN = (
    Case("killed", told=True),
    Case("stuck", told=True),
    Case("exception", says=("ValueError: batch 17 has no labels",), told=True),
    Case("wrong_op", says=("all_gather", "all_reduce")),
    Case("wrong_shape", says=("999", "1000")),
    Case("wrong_dtype", says=("float64", "float32")),
    Case("wrong_root"),
    Case("wrong_order"),
)
KIND_OF = {"out_of_memory": "killed"}  # what the verdict calls it


@dataclass
class Found:
    """What `closeranks trace` said of a job, look after look, until it said what was expected or the time was over."""

    looks: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    told: list[str] = field(default_factory=list)  # in the survivors' exceptions

    @property
    def last(self) -> dict[str, Any]:
        assert self.looks, f"no verdict; the job said:\n{self.output[-3000:]}"
        return self.looks[-1]


def look(folder: Path) -> dict[str, Any] | None:
    done = subprocess.run(
        [TOOL, "trace", str(folder), "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode not in (0, 1) or not done.stdout:
        return None
    verdict: dict[str, Any] = json.loads(done.stdout)["verdict"]
    return verdict


def is_guilty(verdict: dict[str, Any], case: Case) -> bool:
    if case.kind == "out_of_memory" and "killed by the kernel for memory" in verdict["sentence"]:
        # The kernel chooses: the one that grows, and another, too, that asks before the first one's memory is free.
        return verdict["slot"] in range(WORKERS)
    return verdict["slot"] == case.slot


def satisfies(verdict: dict[str, Any], case: Case) -> bool:
    text = verdict["sentence"] + "\n".join(verdict["evidence"])
    right = verdict["kind"] == KIND_OF.get(case.kind, case.kind) and is_guilty(verdict, case)
    return right and all(said in text for said in case.says)


def watch(folder: Path, case: Case, found: Found, has_ended: Callable[[], bool]) -> None:
    """Looks while the job runs, and once after."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended = has_ended()
        verdict = look(folder) if folder.is_dir() else None
        if verdict is not None:
            found.looks.append(verdict)
        # What is wrong is found as early as it is; that nothing is, at the end.
        if ended or (verdict is not None and case.kind != "ok" and satisfies(verdict, case)):
            return
        time.sleep(0.5)


def stop(process: subprocess.Popen[str]) -> None:
    for end in (process.terminate, process.kill):
        if process.poll() is None:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)


def run_case(folder: Path, case: Case) -> Found:
    """Under `closeranks run`, to the verdict; what still runs is ended."""
    found = Found()
    folder.mkdir()
    command = [TOOL, "run", "--nproc-per-node", str(WORKERS), "--trace-dir", str(folder / "trace")]
    command += ["--log-dir", str(folder / "log"), *case.flags]
    command += [str(HERE / "verdict_scenarios.py"), case.kind, "--timeout", "300"]
    environment = dict(os.environ)
    with contextlib.ExitStack() as stack:
        if case.kind == "out_of_memory":
            group = stack.enter_context(memory_group.memory_group(MEMORY_LIMIT))
            command = ["sh", "-c", f'echo $$ > {group} && exec "$@"', "sh", *command]
        output = stack.enter_context((folder / "output").open("w"))
        silent = contextlib.ExitStack()
        if case.kind == "uninterruptible":
            (folder / "silent").mkdir()
            environment["SILENT_FILE"] = str(silent.enter_context(silent_files.silent_file(folder / "silent")))
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment)
        stack.callback(stop, process)
        stack.callback(silent.close)  # before: no signal ends its reader
        watch(folder / "trace", case, found, lambda: process.poll() is not None)
    found.output = (folder / "output").read_text()
    return found


def told(output: Path) -> list[str]:
    """The verdicts in the exceptions of the job's processes."""
    return [line for line in output.read_text().splitlines() if "]: verdict: " in line]


def run_plain(folder: Path, cases: list[Case]) -> dict[str, Found]:
    """All side by side, with no agent that would watch or end them."""
    command = [sys.executable, str(HERE / "plain_jobs.py"), str(folder), "5", *(case.kind for case in cases)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    found = {case.kind: Found() for case in cases}
    try:
        for case in cases:
            watch(folder / case.kind / "trace", case, found[case.kind], lambda: process.poll() is not None)
        for case in cases:
            deadline = time.monotonic() + 20
            while case.told and len(told(folder / case.kind / "output")) < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)
        stop(process)
    for case in cases:
        found[case.kind].output = (folder / case.kind / "output").read_text()
        found[case.kind].told = told(folder / case.kind / "output")
    return found


Outcomes = dict[tuple[str, str], "Future[Found]"]


def missing_capability(kind: str) -> str | None:
    if kind == "uninterruptible":
        return silent_files.missing_capability()
    return memory_group.missing_capability() if kind == "out_of_memory" else None


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """What was found in each job that a selected test asks for, by ("run" or "plain", kind)."""
    folder = tmp_path_factory.mktemp("verdicts")
    asked: set[tuple[str, str]] = set()
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        if case is not None and item.path == request.path:
            asked.add(("run" if "under_run" in item.name else "plain", case.kind))
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        found: Outcomes = {}
        plain = [case for case in PLAIN if ("plain", case.kind) in asked]
        together = pool.submit(run_plain, folder / "plain", plain) if plain else None
        for case in UNDER_RUN:
            if ("run", case.kind) in asked and missing_capability(case.kind) is None:
                found["run", case.kind] = pool.submit(run_case, folder / case.kind, case)
        if together is not None:
            for case in plain:
                found["plain", case.kind] = pool.submit(lambda kind: together.result()[kind], case.kind)
        yield found


def check(found: Found, case: Case) -> None:
    for verdict in found.looks:
        assert verdict["slot"] == NOBODY or is_guilty(verdict, case), f"an innocent slot was accused: {verdict}"
    assert satisfies(found.last, case), f"{found.last}\nthe job said:\n{found.output[-3000:]}"


@pytest.mark.parametrize("case", UNDER_RUN, ids=lambda case: case.kind)
def test_the_verdict_under_run(outcomes: Outcomes, case: Case) -> None:
    missing = missing_capability(case.kind)
    if missing is not None:
        pytest.skip(f"needs {missing}")
    check(outcomes["run", case.kind].result(timeout=300), case)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.kind)
def test_the_verdict_on_plain_processes(outcomes: Outcomes, case: Case) -> None:
    found = outcomes["plain", case.kind].result(timeout=300)
    check(found, case)
    if case.told:
        assert len(found.told) == WORKERS - 1, found.output
        for line in found.told:
            assert f"slot {CULPRIT}" in line and all(said in line for said in case.says), line
