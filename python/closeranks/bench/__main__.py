"""`closeranks bench`: collectives of closeranks beside their peers, alternating in one run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any

from closeranks.bench import command_line, ddp, repair
from closeranks.bench.compare import MEMORIES, compare, rows
from closeranks.bench.report import plot, print_report
from closeranks.bench.sides import BenchError


def say(text: str) -> None:
    print(text, flush=True)


def other(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures that are no op of their own."""
    if arguments.op == "ddp":
        return ddp.measure(arguments.processes, say)
    if arguments.bytes is not None and len(arguments.bytes) > 1:
        raise BenchError("repair takes one size")
    bytes_ = 16 << 20 if arguments.bytes is None else arguments.bytes[0]
    memories = arguments.memory if arguments.memory != MEMORIES else ("shared", "torch")
    return repair.measure(arguments.processes, bytes_, memories, say)


def main() -> int:
    # Ended from outside, it still ends its processes and removes their folder.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    arguments = command_line.parser().of(sys.argv[1:])
    found: list[dict[str, Any]]
    try:
        if arguments.op in command_line.OTHERS:
            found = other(arguments)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=2) + "\n")
            return 0
        request = command_line.request_of(arguments)
        if arguments.op == "barrier" and arguments.bytes is not None:
            print("barrier moves no bytes: --bytes is left aside")
        outcome = compare(request, say)
        print_report(outcome, arguments.explain)
        found = rows(outcome)
        if arguments.plot:
            plot(outcome, arguments.plot)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    except BenchError as error:
        print(f"closeranks bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
