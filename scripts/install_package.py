"""Links the package, the extension and the tool of a build folder into this python's environment.

Usage: python scripts/install_package.py --build FOLDER [--site FOLDER]

An editable install without pip: site-packages/closeranks is a folder of links to python/closeranks and to the built
extension, beside a dist-info with the entry point by which torch finds the backend (both from pyproject.toml). The tool
is linked into the environment's bin. Nothing is copied or built, so it costs nothing to run again; links that have lost
their target go. With --site all of that goes into FOLDER instead: PYTHONPATH=FOLDER then uses this build.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def link(target: Path, place: Path) -> None:
    """Makes `place` a link to `target`, and nothing when it is already."""
    if place.is_symlink() and place.readlink() == target:
        return
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def link_package(build: Path, site: Path) -> None:
    package = site / "closeranks"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {p.name: p for p in (ROOT / "python" / "closeranks").iterdir() if p.name != "__pycache__"}
    wanted.update({p.name: p for p in (build / "python" / "closeranks").glob("_closeranks*.so")})
    for name, target in wanted.items():
        link(target, package / name)
    for place in package.iterdir():
        if place.is_symlink() and place.name not in wanted:
            place.unlink()


def write_if_changed(file: Path, text: str) -> None:
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def write_dist_info(project: dict[str, Any], site: Path) -> None:
    """The metadata importlib.metadata reads: name, version, entry points."""
    current = f"{project['name']}-{project['version']}.dist-info"
    for old in site.glob(f"{project['name']}-*.dist-info"):
        if old.name != current:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
    folder = site / current
    folder.mkdir(exist_ok=True)
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
    write_if_changed(
        folder / "METADATA",
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n{requires}",
    )
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    write_if_changed(folder / "entry_points.txt", points)
    write_if_changed(folder / "INSTALLER", "scripts/install_package.py\n")
    # pip takes a package without RECORD as not its own and refuses to overwrite it silently.


def main() -> int:
    parser = argparse.ArgumentParser(description="Link the package and the tool into this python's environment.")
    parser.add_argument("--build", type=Path, required=True, help="build folder")
    parser.add_argument("--site", type=Path, help="folder to link the package into (default: site-packages)")
    arguments = parser.parse_args()
    build: Path = arguments.build.resolve()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not list((build / "python" / "closeranks").glob("_closeranks*.so")):
        print(f"install: {build} has no extension: build it with CLOSERANKS_TORCH=ON first", file=sys.stderr)
        return 1
    site: Path = (arguments.site or Path(sysconfig.get_path("purelib"))).absolute()
    link_package(build, site)
    write_dist_info(project, site)
    tool = build / "tools" / "closeranks"
    if arguments.site is None and tool.exists():
        link(tool, Path(sysconfig.get_path("scripts")) / "closeranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
