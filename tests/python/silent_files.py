"""A file system that answers everything but reads: who reads a file of it waits in the kernel, in state D if a signal
came. Spoken by hand over /dev/fuse, so that no library and no set-uid helper is needed; mounting takes CAP_SYS_ADMIN.

    with silent_file(folder) as path: ...
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

LOOKUP, GETATTR, OPEN, READ, RELEASE, INIT, OPENDIR, INTERRUPT = 1, 3, 14, 15, 18, 26, 27, 36
FORGET, BATCH_FORGET = 2, 42
NO_ANSWER = (READ, FORGET, BATCH_FORGET)
FILE_ID = 2
DIRECT_IO = 1
MNT_FORCE, MNT_DETACH = 1, 2
ONE_HOUR = 3600

libc = ctypes.CDLL(None, use_errno=True)


def attributes(inode: int) -> bytes:
    """A struct fuse_attr: the root folder, or the file of 4096 bytes in it."""
    mode = stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o444
    return struct.pack("<6Q10I", inode, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation: int, inode: int) -> bytes | int:
    """What the kernel is told: the bytes of its answer, or a negative errno."""
    if operation == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 16, 12, 65536, 1, 1, 0, *[0] * 8)
    if operation == LOOKUP:
        return struct.pack("<4Q2I", FILE_ID, 0, ONE_HOUR, ONE_HOUR, 0, 0) + attributes(FILE_ID)
    if operation == GETATTR:
        return struct.pack("<Q2I", ONE_HOUR, 0, 0) + attributes(inode)
    if operation in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 1, DIRECT_IO, 0)
    # Interrupts above all: the kernel then waits for the answer to the read, whatever happens to the reader.
    return b"" if operation == RELEASE else -errno.ENOSYS


def serve(device: int) -> None:
    """Until the connection is aborted."""
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            return
        _, operation, unique, inode = struct.unpack_from("<2I2Q", request)
        if operation in NO_ANSWER:
            continue
        said = answer(operation, inode)
        body, error_number = (b"", said) if isinstance(said, int) else (said, 0)
        with contextlib.suppress(OSError):  # who asked is gone
            os.write(device, struct.pack("<IiQ", 16 + len(body), error_number, unique) + body)


def missing_capability() -> str | None:
    """What this machine lacks for it, as a skip names it; None: nothing."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse"
    if not any(line.split()[-1] == "fuse" for line in Path("/proc/filesystems").read_text().splitlines()):
        return "the file system fuse in the kernel"
    held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    if not int(held.split()[1], 16) >> 21 & 1:
        return "CAP_SYS_ADMIN, to mount a fuse file system"
    return None


@contextlib.contextmanager
def silent_file(folder: Path) -> Iterator[Path]:
    """Mounts it on `folder`, which must be there; at the end every read fails, and it is gone."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    place = os.fsencode(folder)
    if libc.mount(b"silent", place, b"fuse", 0, options.encode()) != 0:
        os.close(device)
        raise OSError(ctypes.get_errno(), f"mounting on {folder}")
    server = threading.Thread(target=serve, args=(device,), daemon=True)
    server.start()
    try:
        yield folder / "file"
    finally:
        # By force: that aborts the connection, which ends all reads and the server.
        libc.umount2(place, MNT_FORCE | MNT_DETACH)
        server.join(timeout=5)
        os.close(device)
