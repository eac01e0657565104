"""Lint: clang-format and ruff on everything, mypy, clang-tidy-19 on the C++ files that changed (--all: on all).

Usage: python scripts/lint.py --build FOLDER [--fix] [--all]
Exit status 1 when anything is found.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPP_FOLDERS = ("include", "src", "tools", "bindings", "examples", "tests")


def cpp_files(*suffixes: str) -> list[Path]:
    return sorted(p for folder in CPP_FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)


def run(name: str, command: list[str]) -> bool:
    result = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        print(result.stdout.rstrip())
        print(f"lint: {name} found something (above)")
        return False
    print(f"lint: {name} is content")
    return True


def git(*arguments: str) -> list[str]:
    result = subprocess.run(["git", *arguments], check=False, cwd=ROOT, capture_output=True, text=True)
    return result.stdout.split() if result.returncode == 0 else []


def changed_files() -> set[Path]:
    """Files that differ from CLOSERANKS_LINT_BASE, else from where origin/main was left, else the commit before."""
    head = git("rev-parse", "HEAD")
    base = os.environ.get("CLOSERANKS_LINT_BASE", "")
    if not base:
        fork = git("merge-base", "HEAD", "origin/main")
        base = fork[0] if fork and fork != head else "HEAD~1"
    names = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    return {ROOT / name for name in names}


def tidy(build: Path, jobs: int, everything: bool) -> bool:
    """clang-tidy on changed .cc files of the torch-free core, or on all of them."""
    known = {entry["file"] for entry in json.loads((build / "compile_commands.json").read_text())}
    changed = changed_files()
    # torch's headers take a minute a file and torch's own macros trip the checks: the plugin is left to -Wall.
    files = [
        file
        for file in cpp_files(".cc")
        if str(file) in known
        and file.relative_to(ROOT).parts[0] in ("src", "tools")
        and (everything or file in changed)
    ]
    if not files:
        print("lint: no file changed for clang-tidy")
        return True
    print(f"lint: clang-tidy reads {len(files)} files", flush=True)

    def check(file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["clang-tidy-19", "-p", str(build), "--quiet", "--warnings-as-errors=*", str(file)],
            check=False,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(check, files))
    for result in results:
        if result.returncode != 0:
            print((result.stdout or result.stderr).rstrip())
    passed = all(result.returncode == 0 for result in results)
    print("lint: clang-tidy is content" if passed else "lint: clang-tidy found something (above)")
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description="Format and static checks.")
    parser.add_argument("--build", type=Path, required=True, help="build folder with compile_commands.json")
    parser.add_argument("--fix", action="store_true", help="let clang-format and ruff rewrite files")
    parser.add_argument("--all", action="store_true", help="clang-tidy on every file, changed or not")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    for tool, package in (("clang-format-19", "clang-format-19"), ("clang-tidy-19", "clang-tidy-19")):
        if shutil.which(tool) is None:
            print(f"lint: {tool} is missing: install {package}")
            return 1
    bin_folder = Path(sys.executable).parent
    sources = [str(p) for p in cpp_files(".h", ".cc")]
    python = ["python", "scripts", "tests"]
    format_mode = ["-i"] if arguments.fix else ["--dry-run", "-Werror"]
    results = [
        run("clang-format", ["clang-format-19", *format_mode, *sources]),
        run("ruff", [str(bin_folder / "ruff"), "check", *(["--fix"] if arguments.fix else []), *python]),
        run("ruff format", [str(bin_folder / "ruff"), "format", *([] if arguments.fix else ["--check"]), *python]),
        run("mypy", [str(bin_folder / "mypy"), "python", "scripts"]),
        tidy(arguments.build.resolve(), arguments.jobs, arguments.all),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
