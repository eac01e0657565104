"""`closeranks bench`: collectives of closeranks beside their peers, alternating in one run."""

from __future__ import annotations

import json
import sys
from typing import Any

from closeranks.bench import command_line
from closeranks.bench.compare import compare, rows
from closeranks.bench.report import plot, print_report
from closeranks.bench.sides import BenchError


def main() -> int:
    arguments = command_line.parser().parse_args()
    found: list[dict[str, Any]]
    try:
        request = command_line.request_of(arguments)
        if arguments.op == "barrier" and arguments.bytes is not None:
            print("barrier moves no bytes: --bytes is left aside")
        outcome = compare(request, lambda text: print(text, flush=True))
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
