"""`closeranks demo`: trains twice, the second time two workers are killed in mid all-reduce; shows what it cost."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from . import picture, report, runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="closeranks demo", description=__doc__)
    parser.add_argument(
        "--workers",
        type=int,
        default=4,
        help="workers on this host (at least 3; default 4)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=400,
        help="training steps of each run (default 400)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder for the report and the picture",
    )
    arguments = parser.parse_args()
    if arguments.workers < 3:
        parser.error("--workers must be at least 3: slots 2 and 0 are killed and somebody must survive")
    if arguments.steps < 60:
        parser.error("--steps must be at least 60: the network has to learn something between the kills")

    console = Console(highlight=False)
    started = time.monotonic()

    def tell(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {line}", soft_wrap=True)

    folder: Path = arguments.out.resolve()
    workers, steps = arguments.workers, arguments.steps
    try:
        console.rule("[bold]training without faults[/bold]", align="left")
        tell(f"{workers} workers start, {steps} steps on scikit-learn's handwritten digits")
        plain = runs.uninterrupted(folder / "uninterrupted", workers, steps, tell)
        console.rule("[bold]the same training, two workers killed[/bold]", align="left")
        tell(f"{workers} workers start")
        strikes = [(steps * 2 // 5, 2), (steps * 7 // 10, 0)]
        faulty = runs.struck(folder / "killed", workers, steps, strikes, tell)
    except runs.DemoError as error:
        console.print(f"[red]the demo failed:[/red] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the workers are stopped")
        return 130

    content = report.build(plain, faulty, workers, steps)
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    picture.draw(folder / "timeline.png", plain, faulty, steps)
    console.print()
    console.print(report.table(content))
    console.print(f"report: {folder / 'report.json'}   picture: {folder / 'timeline.png'}")
    broken = report.broken_promises(content, kills=len(strikes))
    for promise in broken:
        console.print(f"[red]promise broken:[/red] {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
