"""What `closeranks bench` was asked to do."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from closeranks.bench.compare import MEMORIES, OPS, PEERS, Request

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
OTHERS = ("ddp", "repair")  # figures that are no op of their own
DEFAULT_BYTES = "8,64k,1M,16M,128M"
MOST_PROCESSES = 64


class Parser(argparse.ArgumentParser):
    """Says one sentence about what is wrong, instead of the usage."""

    def of(self, words: Sequence[str]) -> argparse.Namespace:
        """The words understood; or the sentence on stderr, and SystemExit(2)."""
        known = [name for action in self._actions for name in action.option_strings]
        # Before argparse takes the value of a flag that it does not know for the op.
        for flag in (word.partition("=")[0] for word in words):
            if flag.startswith("-") and flag not in known:
                self.error(f"{flag} is not a flag of {self.prog}{meant(flag, known, '--help lists them')}")
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            message = f"'{word}' is one word too many; one op is measured at a time"
        message = message.removeprefix("argument ")
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)


def meant(word: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; {otherwise}"


def size(text: str) -> int:
    """Bytes of '8', '64k', '1M', '16MiB'."""
    lower = text.strip().lower().removesuffix("b").removesuffix("i")
    digits = lower.rstrip("kmg")
    unit = lower[len(digits) :]
    if not digits.isdigit() or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: write bytes, or 64k, 1M, 16MiB")
    value = int(digits) * UNITS[unit]
    if value < 4:
        raise argparse.ArgumentTypeError(f"'{text}' is less than one float32 element (4 bytes)")
    return value


def sizes(text: str) -> list[int]:
    return sorted({size(part) for part in text.split(",")})


def operation(text: str) -> str:
    if text not in OPS + OTHERS:
        listed = f"there are {', '.join(OPS)}; and {' and '.join(OTHERS)}"
        raise argparse.ArgumentTypeError(f"there is no '{text}' to measure{meant(text, OPS + OTHERS, listed)}")
    return text


def processes(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= MOST_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"takes a number from 2 (one process has nobody to work with) to {MOST_PROCESSES}, not '{text}'"
        )
    return int(text)


def some_of(known: tuple[str, ...], what: str) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(
                    f"'{word}' is no {what}{meant(word, known, 'there are ' + ', '.join(known))}"
                )
        if not words:
            raise argparse.ArgumentTypeError(f"names no {what}; there are {', '.join(known)}")
        return tuple(name for name in known if name in words)

    return chosen


def file(text: str) -> Path:
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write '{text}': there is no folder {path.absolute().parent}")
    return path


def parser() -> Parser:
    made = Parser(
        prog="closeranks bench",
        description="Collectives of closeranks beside their peers, alternating in one run on this host.",
        epilog=(
            "OP: " + ", ".join(OPS) + ". Or ddp: a training step of a 10-million-parameter network beside the same on "
            "Gloo; or repair: from a SIGKILL inside an all_reduce to its end at the survivors. Sizes are those of the "
            "larger of a process's buffers, rounded up to whole float32 elements for each process."
        ),
        allow_abbrev=False,
    )
    made.add_argument("op", nargs="?", default="all_reduce", type=operation, metavar="OP", help="default all_reduce")
    made.add_argument("--processes", type=processes, default=4, metavar="N", help="on this host (default 4)")
    made.add_argument(
        "--bytes", type=sizes, metavar="A,B,...", help=f"sizes, as 8,64k,1M (default {DEFAULT_BYTES}; repair: 16M)"
    )
    made.add_argument(
        "--against", type=some_of(PEERS, "peer"), default=PEERS, metavar="PEERS", help="default gloo,openmpi"
    )
    made.add_argument(
        "--memory",
        type=some_of(MEMORIES, "memory"),
        default=MEMORIES,
        metavar="KINDS",
        help="of ours: shared and private from C++, torch through torch.distributed (default all three)",
    )
    made.add_argument("--seconds", type=float, default=6.0, help="of alternating rounds for a size (default 6)")
    made.add_argument("--json", type=file, metavar="FILE", help="write the rows to this file too")
    made.add_argument("--plot", type=file, metavar="FILE.png", help="draw time over bytes")
    made.add_argument("--explain", action="store_true", help="which algorithm and memory path was taken, and why")
    return made


def request_of(arguments: argparse.Namespace) -> Request:
    asked = sizes(DEFAULT_BYTES) if arguments.bytes is None else arguments.bytes
    return Request(
        op=arguments.op,
        processes=arguments.processes,
        sizes=[0] if arguments.op == "barrier" else asked,
        memories=arguments.memory,
        peers=arguments.against,
        seconds=arguments.seconds,
    )
