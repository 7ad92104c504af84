"""From a traceback to the one line that says what went wrong, and where in the user's code."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from trainers.code_files import OUR_PACKAGES

_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_LONGEST = 300


def error_line(message: str) -> str:
    """Return the error at the end of a traceback, with the last place in the user's code: "ValueError: no (task.py:7)".

    The place is left out where none of the user's files is in the traceback.

    Args:
        message: A traceback as Python formats it; any other text comes back on one line.
    """
    frames = list(_FRAME.finditer(message))
    if not frames:
        return _shortened(message)
    after = message[frames[-1].end() :].splitlines()[1:]
    error = next((number for number, line in enumerate(after) if line and not line[0].isspace()), len(after))
    text = _shortened(" ".join(after[error:]))
    place = next((frame for frame in reversed(_last_stack(message, frames)) if _is_users(frame["file"])), None)
    return text if place is None else f"{text} ({place['file']}:{place['line']})"


def _last_stack(message: str, frames: list[re.Match[str]]) -> list[re.Match[str]]:
    """Return the frames of the last of several chained tracebacks."""
    start = max(0, message.rfind("Traceback (most recent call last)"))
    return [frame for frame in frames if frame.start() >= start]


def _is_users(file: str) -> bool:
    """Whether a file is neither ours nor Python's nor an installed package's; the built-in tasks count as a user's."""
    path, home = Path(file), Path(__file__).resolve().parent.parent
    if path.is_relative_to(home / "trainers" / "tasks"):
        return True
    theirs = [
        *(home / name for name in OUR_PACKAGES),
        *(Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib")),
    ]
    return path.is_absolute() and not any(path.is_relative_to(folder) for folder in theirs)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."
