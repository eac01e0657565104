"""Lint: clang-format and ruff on everything, mypy, clang-tidy-19 on the C++ files that changed.

Usage: python scripts/lint.py --build FOLDER [--fix]
A file counts as checked by clang-tidy while its content, its includes' contents and .clang-tidy stay the same; the
record lies in FOLDER, so a warm run checks changed files only. Exit status 1 when anything is found.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPP_FOLDERS = ("include", "src", "tools", "bindings", "tests")


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


def headers_digest() -> str:
    """One digest over all headers and the configuration: a changed header sends its includers through again."""
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for header in cpp_files(".h"):
        digest.update(header.read_bytes())
    return digest.hexdigest()


def tidy(build: Path, jobs: int) -> bool:
    """clang-tidy on .cc files of the torch-free core whose content has not passed before."""
    database = build / "compile_commands.json"
    known = {entry["file"] for entry in json.loads(database.read_text())}
    record_file = build / "clang-tidy-passed.json"
    record: dict[str, str] = json.loads(record_file.read_text()) if record_file.exists() else {}
    headers = headers_digest()
    pending: list[tuple[Path, str]] = []
    for file in cpp_files(".cc"):
        relative = str(file.relative_to(ROOT))
        # torch's headers take a minute a file and torch's own macros trip the checks: the plugin is left to -Wall.
        if str(file) not in known or relative.startswith(("bindings/", "tests/")):
            continue
        digest = hashlib.sha256(file.read_bytes() + headers.encode()).hexdigest()
        if record.get(relative) != digest:
            pending.append((file, digest))
    if not pending:
        print("lint: clang-tidy has nothing new to read")
        return True
    print(f"lint: clang-tidy reads {len(pending)} files", flush=True)
    passed = True

    def check(file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["clang-tidy-19", "-p", str(build), "--quiet", "--warnings-as-errors=*", str(file)],
            check=False,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for (file, digest), result in zip(pending, pool.map(check, [f for f, _ in pending]), strict=True):
            if result.returncode == 0:
                record[str(file.relative_to(ROOT))] = digest
            else:
                passed = False
                print(result.stdout.rstrip())
    record_file.write_text(json.dumps(record, indent=1, sort_keys=True))
    print("lint: clang-tidy is content" if passed else "lint: clang-tidy found something (above)")
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description="Format and static checks.")
    parser.add_argument("--build", type=Path, required=True, help="build folder with compile_commands.json")
    parser.add_argument("--fix", action="store_true", help="let clang-format and ruff rewrite files")
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
        tidy(arguments.build.resolve(), arguments.jobs),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
