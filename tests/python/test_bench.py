"""`closeranks bench`: what it is asked, what it measures, and that what it measures is right. No figure is asserted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from closeranks.bench import command_line, openmpi, repair
from closeranks.bench.compare import OPS, gloo_job, moved_bytes, our_job, sources, worker_program
from closeranks.bench.measure import Contender, alternate, measure_tail, percentile
from closeranks.bench.sides import BenchError, Job, Refusal, Side, Sides
from jobs import TOOL

ROW = {"op", "processes", "hosts", "bytes", "memory", "median_us", "p99_us", "peer", "peer_median_us", "ratio"}
# Inlined, with a part that is no multiple of anything, and cut into pieces.
SIZES = (8, 100_004, 5 << 20)


def bench(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CLOSERANKS_TOOL": TOOL}
    if path is not None:
        environment["PATH"] = path
    command = [sys.executable, "-m", "closeranks.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


# ---- what it is asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["allreduce"], "there is no 'allreduce' to measure; did you mean all_reduce?"),
        (["sort"], "there is no 'sort' to measure; there are all_reduce, reduce,"),
        (["--byte", "8"], "--byte is not a flag of closeranks bench; did you mean --bytes?"),
        (["all_reduce", "barrier"], "'barrier' is one word too many; one op is measured at a time"),
        (["--bytes", "8,much"], "--bytes: 'much' is not a size: write bytes, or 64k, 1M, 16MiB"),
        (["--bytes", "2"], "--bytes: '2' is less than one float32 element (4 bytes)"),
        (
            ["--processes", "1"],
            "--processes: takes a number from 2 (one process has nobody to work with) to 64, not '1'",
        ),
        (["--against", "mpi"], "--against: 'mpi' is no peer; did you mean openmpi?"),
        (["--memory", ""], "--memory: names no memory; there are shared, private, torch"),
        (["--json", "/nowhere/rows.json"], "--json: cannot write '/nowhere/rows.json': there is no folder /nowhere"),
        (["--bytes"], "--bytes: expected one argument"),
    ],
)
def test_a_wrong_word_gives_one_helpful_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.parser().of(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in said and said.count("\n") == 1 and said.startswith("closeranks bench: ")


def test_sizes_and_lists_are_understood() -> None:
    arguments = command_line.parser().of(["--bytes", "1MiB,8,64k,64K", "--against", "openmpi , gloo"])
    request = command_line.request_of(arguments)
    assert request.sizes == [8, 64 << 10, 1 << 20]
    assert request.peers == ("gloo", "openmpi")
    default = command_line.request_of(command_line.parser().of([]))
    assert (default.op, default.processes) == ("all_reduce", 4)
    assert default.sizes == [8, 64 << 10, 1 << 20, 16 << 20, 128 << 20]
    assert command_line.request_of(command_line.parser().of(["barrier"])).sizes == [0]


# ---- how it measures ---------------------------------------------------------------------------------------------


class Scripted(Side):
    """A side whose ops take what the script says, and that remembers the order of rounds."""

    def __init__(self, order: list[str], seconds: float) -> None:
        super().__init__("scripted", 1, [], Path("/nonexistent"))
        self.order = order
        self.seconds = seconds

    def round(self, identity: str, runs: int) -> float:
        if runs > 1 or self.seconds >= 0.05:
            self.order.append(identity)
        return self.seconds

    def singles(self, identity: str, runs: int) -> list[list[float]]:
        assert identity
        return [[self.seconds] * runs, [self.seconds] * (runs - 5) + [9.0] * 5]


def test_rounds_alternate_and_each_pass_begins_with_another_contender() -> None:
    order: list[str] = []
    contenders = [Contender(name, Scripted(order, 0.05), name) for name in ("a", "b", "c")]
    alternate(contenders, seconds=0.0, most=5)
    assert order[-15:] == [*"abc", *"bca", *"cab", *"abc", *"bca"]
    assert all(contender.median == 0.05 and len(contender.rounds) == 5 for contender in contenders)


def test_the_tail_is_that_of_the_process_where_it_is_largest() -> None:
    contender = Contender("a", Scripted([], 0.01), "a", rounds=[0.01])
    measure_tail(contender)  # 100 single ops, 5 of them slow on one process
    assert contender.p99 == 9.0
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0


@pytest.mark.parametrize(
    ("op", "moved"),
    [
        ("all_reduce", 8 * 400),
        ("reduce", 5 * 400),
        ("broadcast", 4 * 400),
        ("all_gather", 4 * 100 + 16 * 100),
        ("reduce_scatter", 16 * 100 + 4 * 100),
        ("all_to_all", 32 * 100),
        ("send_recv", 4 * 400),
        ("barrier", 0),
    ],
)
def test_what_an_op_must_move(op: str, moved: int) -> None:
    assert moved_bytes(op, 400, 4) == moved


# ---- what it measures is right ------------------------------------------------------------------------------------


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    with Sides(tmp_path) as started:
        yield started


def run_everything(side: Side, memory: str, variants: bool) -> dict[str, str]:
    """Each op at each size, checked against known values by the processes themselves; what was refused, and why."""
    refused = {}
    for op in OPS:
        for variant in side.variants(op) if variants else ["default"]:
            for bytes_ in SIZES if op != "barrier" else (0,):
                try:
                    side.prepare("it", op, bytes_, memory, variant)
                except Refusal as refusal:
                    refused[f"{op} {variant} {bytes_}"] = str(refusal)
                    continue
                assert side.round("it", 3) > 0
                assert all(len(own) == 4 for own in side.singles("it", 4))
                side.release()
    return refused


@pytest.mark.parametrize("processes", [2, 3])
def test_every_op_of_ours_from_cpp(sides: Sides, processes: int) -> None:
    side = sides.start(our_job("ours", processes, sides.folder, [str(worker_program())], "--no-python"))
    sides.gather()
    for memory in ("shared", "private"):
        assert run_everything(side, memory, variants=False) == {}


def test_every_op_through_torch_over_ours_and_over_gloo(sides: Sides) -> None:
    ours = sides.start(our_job("torch", 2, sides.folder, ["-m", "closeranks.bench.torch_worker", "closeranks"]))
    gloo = sides.start(gloo_job(2, sides.folder))
    sides.gather()
    assert run_everything(ours, "torch", variants=True) == {}
    # Which ops Gloo has is Gloo's affair; that the result of one is wrong would be ours.
    assert not [why for why in run_everything(gloo, "torch", variants=True).values() if "wrong" in why]
    assert "congestion control" in " ".join(gloo.command("settings")[0])


@pytest.mark.skipif(openmpi.missing() is not None, reason=str(openmpi.missing()))
def test_every_op_and_algorithm_of_open_mpi(sides: Sides) -> None:
    program = openmpi.compile_worker(sources(), sides.folder / "build")
    started = [sides.start(job) for job in openmpi.jobs(2, program)]
    sides.gather()
    refused = run_everything(started[0], "private", variants=True)
    assert not [why for why in refused.values() if "wrong" in why]
    assert not [what for what in refused if " default " in what]
    assert len(started[0].variants("all_reduce")) > 5
    best = openmpi.Peer(started).best("all_reduce", 4096)
    assert best.name == "openmpi" and "when idle" in best.note


def test_rows_table_and_picture_of_a_whole_run(tmp_path: Path) -> None:
    rows_file, picture = tmp_path / "rows.json", tmp_path / "plot.png"
    done = bench(
        *("reduce_scatter", "--processes", "2", "--bytes", "1k,3M", "--seconds", "0.1", "--explain"),
        *("--json", str(rows_file), "--plot", str(picture)),
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(rows_file.read_text())
    peers = {"gloo"} | (set() if openmpi.missing() else {"openmpi"})
    combinations = {(row["bytes"], row["memory"], row["peer"]) for row in rows}
    assert combinations == {(b, m, p) for b in (1024, 3 << 20) for m in ("shared", "private", "torch") for p in peers}
    assert len(rows) == len(combinations)
    for row in rows:
        assert row.keys() >= ROW
        assert (row["op"], row["processes"], row["hosts"]) == ("reduce_scatter", 2, 1)
        assert row["ratio"] == pytest.approx(row["peer_median_us"] / row["median_us"], rel=0.01)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "reduce_scatter, float32, 2 processes" in done.stdout and "Gloo: TCP congestion control" in done.stdout


def test_without_mpirun_the_rest_is_measured_and_it_says_so(tmp_path: Path) -> None:
    folders = [tmp_path / "bin"]
    folders[0].mkdir()
    for name in ("env", "sh", "bash"):
        (folders[0] / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    rows_file = tmp_path / "rows.json"
    done = bench(
        *("barrier", "--processes", "2", "--seconds", "0.1", "--memory", "private", "--json", str(rows_file)),
        path=str(folders[0]),
    )
    assert done.returncode == 0, done.stderr
    assert "Open MPI is not measured: there is no mpirun (make bench installs" in done.stdout
    assert [row["peer"] for row in json.loads(rows_file.read_text())] == ["gloo"]


# ---- when something goes wrong -----------------------------------------------------------------------------------


def test_a_side_that_does_not_start_is_named_with_its_last_words(sides: Sides) -> None:
    sides.start(Job("broken", 1, [["/bin/sh", "-c", "echo no such luck; exit 3"]]))
    with pytest.raises(BenchError, match=r"(?s)broken did not start \(exit status 3\).*no such luck"):
        sides.gather()


def test_a_process_that_ends_in_the_middle_is_named(sides: Sides) -> None:
    script = (
        "import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['CLOSERANKS_BENCH_SOCKET']);"
        "s.sendall(b'hello half 0\\n'); s.recv(100); print('out of memory', flush=True)"
    )
    side = sides.start(Job("half", 1, [[sys.executable, "-c", script]]))
    sides.gather()
    with pytest.raises(BenchError, match=r"(?s)rank 0 of half ended at 'round it 3'.*out of memory"):
        side.round("it", 3)


def test_a_kill_inside_an_all_reduce_is_timed() -> None:
    """Tries a few times: a kill that came too late does not count."""
    for victim in (1, 0, 1, 0):
        seconds = repair.strike_one("private", 3, 16 << 20, victim)
        if seconds is not None:
            assert 0 < seconds < 10
            return
    pytest.fail("none of four kills fell inside an all_reduce")
