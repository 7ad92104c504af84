"""Python processes in which nothing of the project is, and of other packages only those that are named."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from zlib import crc32

from packaging.requirements import Requirement


def run_alone(code: str, folder: Path, given: Any, *packages: str) -> Any:
    """Run code in a new process and return the JSON that it prints."""
    site = site_with(folder.parent, *packages)
    start = f"import json, sys\nsys.path[:0] = [{str(folder)!r}, {str(site)!r}]\ngiven = json.load(sys.stdin)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code],
        cwd=folder, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=300,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def site_with(folder: Path, *packages: str, exactly: bool = False) -> Path:
    """Return a folder in which packages lie, and nothing else of what is installed here."""
    site = folder / f"site {crc32(' '.join(packages).encode()):08x}{' exactly' if exactly else ''}"
    if not site.exists():
        _link(site, packages, exactly=exactly)
    return site


def _link(site: Path, packages: tuple[str, ...], *, exactly: bool) -> None:
    """Make a folder of links to what belongs to some packages, and to those that they depend on."""
    site.mkdir()
    waiting, known = list(packages), set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in known:
            continue
        known.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # needed on another platform only
            continue
        if not exactly:
            needs = [Requirement(one) for one in found.requires or ()]
            waiting += [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            place = Path(str(found.locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(place)
