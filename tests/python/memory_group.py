"""A memory cgroup of its own for a job, so that the kernel kills a worker of it for memory and of nothing else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# (the folder in which groups are made, the file of the limit): version 2, then version 1.
PLACES = ((ROOT, "memory.max"), (ROOT / "unified", "memory.max"), (ROOT / "memory", "memory.limit_in_bytes"))


def place() -> tuple[Path, str] | None:
    for folder, limit in PLACES:
        try:
            controllers = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            controllers = ["memory"] if folder.name == "memory" else []
        if "memory" in controllers and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
            return folder, limit
    return None


def missing_capability() -> str | None:
    """What this machine lacks for it, as a skip names it; None: nothing."""
    return None if place() is not None else "a memory cgroup that may be made (root, with the memory controller)"


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yields the file that takes the id of a process to put into the group, which must be empty at the end."""
    found = place()
    assert found is not None
    group = found[0] / f"closeranks-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / found[1]).write_text(str(limit_bytes))
        yield group / "cgroup.procs"
    finally:
        deadline = time.monotonic() + 10
        while True:
            try:
                group.rmdir()
                break
            except OSError:  # its last processes are being reaped
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
