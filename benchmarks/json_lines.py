"""Files of JSON lines, in which a run that is cut and continued keeps its results."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The results of a file, if there is one; a line that was cut short is none."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append a result, on a line of its own even if the last one was cut short."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
