"""Measures an installation by pip: megabytes and processor seconds of the base, and what each extra adds to it.

Builds a wheel, installs it into an environment in a temporary folder, and prints a table in Markdown.
The index decides whether torch is a CPU or a CUDA build.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extra", action="append", help="measure this extra; all extras without the option")
    extras = parser.parse_args().extra or [name for name in declared_extras() if name != "dev"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT), python=sys.executable)
        (wheel,) = folder.glob("*.whl")
        print("| | packages | MB | processor seconds |\n|---|---|---|---|")
        venv.create(folder / "base", with_pip=True)
        python = str(folder / "base" / "bin" / "python")
        (site,) = (folder / "base").glob("lib/python*/site-packages")
        before = megabytes(site)
        seconds = pip("install", str(wheel), python=python)
        row("base", len(list(site.glob("*.dist-info"))) - 1, megabytes(site) - before, seconds)  # without pip itself
        for extra in extras:
            measure(extra, wheel, python, folder)


def measure(extra: str, wheel: Path, python: str, folder: Path) -> None:
    """Install the packages that an extra adds to the environment of `python` into a folder of their own."""
    report, target = folder / "report.json", folder / extra
    seconds = pip("install", "--dry-run", "--report", str(report), f"{wheel}[{extra}]", python=python)
    packages = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    added = [f"{one['name']}=={one['version']}" for one in packages if one["name"] != "automl-search"]
    target.mkdir()
    if added:
        seconds += pip("install", "--no-deps", "--target", str(target), *added, python=python)
    row(f"`{extra}`", len(added), megabytes(target), seconds)


def declared_extras() -> list[str]:
    """Return the names of the extras in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["optional-dependencies"])


def pip(command: str, *arguments: str, python: str) -> float:
    """Run pip and return its processor time in seconds, which other programs on the machine change little."""
    options = ("--quiet", "--no-cache-dir", "--constraint", str(CONSTRAINTS))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-m", "pip", command, *options, *arguments], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def megabytes(folder: Path) -> float:
    """Return the size of all files in a folder, without links."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e6


def row(name: str, packages: int, size_mb: float, seconds: float) -> None:
    print(f"| {name} | {packages} | {size_mb:,.0f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
