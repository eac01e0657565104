"""Checkpoints: one file with all of a job's state, whole or not there.

A name carries (term, n, step): of two workers that both believe to be the one that writes, the one of the later view is
right (protocol rule 26), and a resumed job counts its terms on from those of the job it goes on with.
"""

from __future__ import annotations

import io
import os
import re
import sys
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

NAME = re.compile(r"closeranks-(\d+)-(\d+)-(\d+)\.pt")
MAGIC = b"closeranks checkpoint 1\n"
# Behind the content: its length, its crc32, MAGIC.
TRAILER_BYTES = 8 + 4 + len(MAGIC)
READ_BYTES = 1 << 20

Stamp = tuple[int, int, int]


def name_of(stamp: Stamp) -> str:
    term, n, step = stamp
    return f"closeranks-{term:06d}-{n:06d}-{step:09d}.pt"


class _Summing(io.RawIOBase):
    """Writes to a file and keeps length and crc32 of all that went through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.length = 0
        self.sum = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self.sum = zlib.crc32(view, self.sum)
        self.length += len(view)
        self._file.write(view)
        return len(view)


def write(folder: Path, stamp: Stamp, content: dict[str, Any]) -> Path:
    """Writes a checkpoint and returns its path. It is on the disk when this returns, and never there in part.

    Raises OSError; a file begun is taken away.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name_of(stamp)
    begun = folder / f".{path.name}.{os.getpid()}"
    try:
        with begun.open("wb") as file:
            through = _Summing(file)
            torch.save(content, cast("IO[bytes]", through))
            file.write(through.length.to_bytes(8, "little") + through.sum.to_bytes(4, "little") + MAGIC)
            file.flush()
            os.fsync(file.fileno())
        begun.replace(path)
    except BaseException:
        begun.unlink(missing_ok=True)
        raise
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path


def newest(folder: Path) -> tuple[Stamp, dict[str, Any]] | None:
    """The whole checkpoint with the highest (term, n, step); None when there is none. Tells of files it skips."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match is not None:
            term, n, step = (int(number) for number in match.groups())
            found.append(((term, n, step), path))
    for stamp, path in sorted(found, reverse=True):
        try:
            return stamp, _read(path)
        except (OSError, ValueError) as error:
            print(f"closeranks: {path} is skipped: {error}", file=sys.stderr, flush=True)
    return None


def _read(path: Path) -> dict[str, Any]:
    """Raises ValueError when the file is not whole."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < TRAILER_BYTES:
            raise ValueError(f"it has {size} bytes, not even a trailer: it was not written to its end")
        file.seek(size - TRAILER_BYTES)
        trailer = file.read(TRAILER_BYTES)
        length, expected = int.from_bytes(trailer[:8], "little"), int.from_bytes(trailer[8:12], "little")
        if trailer[12:] != MAGIC or length != size - TRAILER_BYTES:
            raise ValueError("its trailer is missing or does not fit: it was not written to its end")
        file.seek(0)
        left, found = length, 0
        while left > 0:
            block = file.read(min(left, READ_BYTES))
            if not block:
                raise ValueError("it became shorter while it was read")
            found = zlib.crc32(block, found)
            left -= len(block)
        if found != expected:
            raise ValueError("its checksum is wrong: some of its bytes have changed")
        file.seek(0)
        # The job's own file: it holds pickled objects of the user's.
        content: dict[str, Any] = torch.load(cast("IO[bytes]", _Window(file, length)), weights_only=False)
        return content


class _Window(io.RawIOBase):
    """The first `length` bytes of a file: torch finds a zip's directory at its end."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._length = length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset, whence = self._length + offset, io.SEEK_SET
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        content = self._file.read(min(len(view), max(0, self._length - self._file.tell())))
        view[: len(content)] = content
        return len(content)
