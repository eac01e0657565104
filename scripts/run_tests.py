"""Runs every test and closes with one summary line.

Usage: python scripts/run_tests.py --build FOLDER [--jobs N] [--soak] [--only STAGE,...]

Stages: ctest (C++, the fuzz targets' corpora included), pytest (Python, real jobs with real kills), fuzz (every
decoder for a few seconds), lint. With --soak each runs at length (CLOSERANKS_SOAK=1 in the environment of the tests; an
hour of fuzzing), and the core without torch is built and tested under the address, undefined-behaviour and thread
sanitizers.
The last line counts all tests; exit status 1 when one failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def run(command: list[str], environment: dict[str, str] | None = None) -> int:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False).returncode


def count_junit(file: Path, status: int) -> Count:
    """Counts of a JUnit file; a run that ended without one counts as one failure."""
    if not file.exists():
        return Count(failed=1)
    count = Count()
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            count.failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            count.skipped += 1
        else:
            count.passed += 1
    if status != 0 and count.failed == 0:
        count.failed = 1
    return count


def ctest(build: Path, jobs: int, report: Path, extra: list[str], environment: dict[str, str]) -> Count:
    report.unlink(missing_ok=True)
    status = run(
        [
            "ctest",
            "--test-dir",
            str(build),
            "-j",
            str(jobs),
            "--output-on-failure",
            "--progress",
            "--output-junit",
            str(report.resolve()),
            *extra,
        ],
        environment,
    )
    return count_junit(report, status)


def lint(arguments: argparse.Namespace) -> Count:
    flags = ["--build", str(arguments.build), "--jobs", str(arguments.jobs), *(["--all"] if arguments.soak else [])]
    status = run([sys.executable, "scripts/lint.py", *flags])
    return Count(passed=1) if status == 0 else Count(failed=1)


def core(arguments: argparse.Namespace) -> Count:
    return ctest(arguments.build, arguments.jobs, arguments.build / "ctest.xml", [], arguments.environment)


def python(arguments: argparse.Namespace) -> Count:
    report = arguments.build / "pytest.xml"
    report.unlink(missing_ok=True)
    status = run(
        [sys.executable, "-m", "pytest", "tests/python", "-q", f"--junitxml={report}", "--durations=10"],
        arguments.environment,
    )
    return count_junit(report, status)


def sanitizers(arguments: argparse.Namespace) -> Count:
    """Builds the core a second and third time, and runs its tests there."""
    total = Count()
    for name in ("address,undefined", "thread"):
        folder = ROOT / "build" / ("sanitize-" + name.split(",")[0])
        if not (folder / "build.ninja").exists():
            print(f"tests: configuring {folder.relative_to(ROOT)}", flush=True)
            status = run(
                [
                    "cmake",
                    "-S",
                    ".",
                    "-B",
                    str(folder),
                    "-G",
                    "Ninja",
                    "-DCLOSERANKS_TORCH=OFF",
                    f"-DCLOSERANKS_SANITIZE={name}",
                    "-DCMAKE_BUILD_TYPE=None",  # its flags would come after these
                    "-Wno-dev",
                    "-DCMAKE_CXX_FLAGS=-O1 -g1",
                ],
            )
            if status != 0:
                return Count(failed=1)
        print(f"tests: building the core with -fsanitize={name}", flush=True)
        if run(["ninja", "-C", str(folder), "-j", str(arguments.jobs)]) != 0:
            total.failed += 1
            continue
        # Pure decision code has one thread: its searches find nothing there, for a quarter of an hour.
        chosen = ["-E", "^(algorithm|membership)(_simulator)?\\."] if name == "thread" else []
        options = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"}
        total.add(ctest(folder, arguments.jobs, folder / "ctest.xml", chosen, {**arguments.environment, **options}))
    return total


def fuzz(arguments: argparse.Namespace) -> Count:
    status = run(["scripts/fuzz.sh", "450" if arguments.soak else "3"])
    return Count(passed=1) if status == 0 else Count(failed=1)


STAGES = {"ctest": core, "pytest": python, "fuzz": fuzz, "lint": lint, "sanitizers": sanitizers}
SHORT = ("ctest", "pytest", "fuzz", "lint")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every test; the last line is the summary.")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--soak", action="store_true", help="long kill matrices, more seeds, full sanitizers, fuzzing")
    parser.add_argument("--only", help="stages, comma-separated: " + ", ".join(STAGES))
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.environment = {"CLOSERANKS_SOAK": "1"} if arguments.soak else {}
    total = Count()
    stages = arguments.only.split(",") if arguments.only else (STAGES if arguments.soak else SHORT)
    for name in stages:
        if name not in STAGES:
            print(f"tests: there is no stage {name}; there are {', '.join(STAGES)}", file=sys.stderr)
            return 2
        print(f"tests: {name}", flush=True)
        start = time.monotonic()
        count = STAGES[name](arguments)
        print(
            f"tests: {name} took {time.monotonic() - start:.0f} s: "
            f"{count.passed} passed, {count.failed} failed, {count.skipped} skipped",
            flush=True,
        )
        total.add(count)
    print(f"total: {total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
