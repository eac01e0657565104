"""`closeranks demo`: trains twice, the second time four workers are lost and replaced; shows what it cost."""

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
        default=300,
        help="training steps of each run, about: whole epochs are trained (default 300)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder for the report and the picture",
    )
    arguments = parser.parse_args()
    if arguments.workers < 4:
        parser.error("--workers must be at least 4: the workers of slots 0 to 3 are lost, one after the other")
    if arguments.steps < 100:
        parser.error("--steps must be at least 100: the network has to learn something between the faults")

    console = Console(highlight=False)
    started = time.monotonic()

    def tell(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {line}", soft_wrap=True)

    folder: Path = arguments.out.resolve()
    workers, epochs = arguments.workers, runs.epochs_of(arguments.steps, arguments.workers)
    part = arguments.steps // 8
    faults = [(part, runs.KILL, 2), (2 * part, runs.KILL, 0), (3 * part, runs.STOP, 1), (4 * part, runs.LOOP, 3)]
    try:
        console.rule("[bold]training without faults[/bold]", align="left")
        tell(f"{workers} workers start, {epochs} epochs on scikit-learn's handwritten digits")
        runs.write_images(runs.images_of(folder / "uninterrupted"))
        plain = runs.uninterrupted(folder / "uninterrupted", workers, epochs, tell)
        console.rule("[bold]the same training, four workers lost[/bold]", align="left")
        tell(f"{workers} workers start")
        faulty = runs.harmed(folder / "harmed", workers, epochs, faults, tell)
    except runs.DemoError as error:
        console.print(f"[red]the demo failed:[/red] {error}")
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the workers are stopped")
        return 130

    content = report.build(plain, faulty, workers)
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    picture.draw(folder / "timeline.png", plain, faulty, content["steps"])
    console.print()
    console.print(report.table(content))
    console.print(f"report: {folder / 'report.json'}   picture: {folder / 'timeline.png'}")
    broken = report.broken_promises(content, len(faults))
    for promise in broken:
        console.print(f"[red]promise broken:[/red] {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
