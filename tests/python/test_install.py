"""The C++ library by itself: installed into a folder, found by CMake, used by a program without torch."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from jobs import ROOT, TOOL

BUILD = Path(TOOL).resolve().parents[1]


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    """Its output, stdout and stderr together; asserts that it ended well."""
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (BUILD / "libcloseranks.a").exists():
        pytest.skip(f"the library is not built in {BUILD}: ninja closeranks_library")
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def test_only_public_headers_are_installed_and_they_stand_alone(prefix: Path, tmp_path: Path) -> None:
    installed = {file.relative_to(prefix / "include").as_posix() for file in (prefix / "include").rglob("*.*")}
    assert installed == {f"closeranks/{file.name}" for file in (ROOT / "include" / "closeranks").glob("*.h")}
    for header in sorted(installed):
        source = tmp_path / "alone.cc"
        source.write_text(f"#include <{header}>\n")
        run("c++", "-std=c++20", "-fsyntax-only", f"-I{prefix}/include", source)


def test_an_example_built_against_the_installed_library_survives_a_kill(prefix: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    run("cmake", "-S", ROOT / "examples" / "survive", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    assert (prefix / "bin" / "closeranks").exists()
    linked = run("ldd", build / "survive")
    assert "torch" not in linked and "python" not in linked
    output = run(build / "survive", environment={"HOME": str(tmp_path)})
    sums = re.findall(r"slot (\d): the sum is (\d+), (\w+), with the inputs of slots([ \d]+)", output)
    for slot in "013":
        # All four; all four, though slot 2 was killed in the middle; the three that are left.
        assert [(s, right, who) for own, s, right, who in sums if own == slot] == [
            ("10", "right", " 0 1 2 3"),
            ("10", "right", " 0 1 2 3"),
            ("7", "right", " 0 1 3"),
        ], output
    assert sum(own == "2" for own, *_ in sums) == 1, output


def test_another_version_is_refused_with_both_named(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(late LANGUAGES CXX)\nfind_package(closeranks 9.9 REQUIRED)\n"
    )
    result = subprocess.run(
        ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-DCMAKE_PREFIX_PATH={prefix}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "9.9" in result.stderr and "0.1.0" in result.stderr
