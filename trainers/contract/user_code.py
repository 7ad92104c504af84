"""Hashes of the user's code and data files, and the place of an error in the user's code."""

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_LONGEST = 300


def error_line(message: str) -> str:
    """Return a message on one line. A traceback becomes its error and last user line: "ValueError: no (task.py:7)"."""
    frames = list(_FRAME.finditer(message))
    if not frames:
        return _shortened(message)
    after = message[frames[-1].end() :].splitlines()[1:]
    error = next((number for number, line in enumerate(after) if line and not line[0].isspace()), len(after))
    text = _shortened(" ".join(after[error:]))
    place = next((frame for frame in reversed(_last_stack(message, frames)) if _is_users(frame["file"])), None)
    return text if place is None else f"{text} ({place['file']}:{place['line']})"


def _last_stack(message: str, frames: list[re.Match[str]]) -> list[re.Match[str]]:
    start = max(0, message.rfind("Traceback (most recent call last)"))
    return [frame for frame in frames if frame.start() >= start]


def _is_users(file: str) -> bool:
    path, home = Path(file), Path(__file__).resolve().parents[2]
    if path.is_relative_to(home / "trainers" / "tasks"):
        return True
    theirs = [*(home / one for one in OUR_PACKAGES), *map(Path, map(sysconfig.get_path, ("stdlib", "purelib")))]
    return path.is_absolute() and not any(path.is_relative_to(folder) for folder in theirs)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


OUR_PACKAGES = ("automl", "reports", "search_spaces", "studies", "trainers")
MOST_FILES = 100
INSTALLED = frozenset({"site-packages", "dist-packages"})
_HASH_CHARACTERS = 16
WHOLE_BYTES, _END_BYTES = 2**28, 2**20
_data_hashes: dict[tuple[str, int, int], str] = {}
"""Hashes of data files by path, modification time in nanoseconds, and size."""
_hashes: dict[str, str] = {}  # hash of each file when first seen, because it may change later


def code_files(folders: Sequence[str]) -> dict[str, str]:
    """Return hashes of imported Python files below folders, at most `MOST_FILES`. Ignores edits after a first call."""
    found: dict[str, str] = {}
    # Each trial checks thousands of modules, so strings are compared: Path objects would take 50 ms.
    for folder in (str(Path(one)).rstrip(os.sep) + os.sep for one in folders):
        for module in list(sys.modules.values()):
            file = str(getattr(module, "__file__", None))
            if not file.startswith(folder) or str(getattr(module, "__name__", "")).partition(".")[0] in OUR_PACKAGES:
                continue
            parts = file.removeprefix(folder).split(os.sep)  # noqa: PTH206 - see above
            if INSTALLED.isdisjoint(parts):
                with suppress(OSError):  # the file was deleted
                    if file not in _hashes:
                        _hashes[file] = hash_of(Path(file))
                    found["/".join(parts)] = _hashes[file]
    return dict(sorted(found.items())[:MOST_FILES])


def hash_of(path: Path) -> str:
    """Return the hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_HASH_CHARACTERS]


def data_files(task: object, options: Mapping[str, Any]) -> dict[str, str]:
    """Return hashes of existing files and folders in a task's options, by path."""
    names = (*getattr(task, "path_options", ()), *getattr(task, "maybe_path_options", ()))
    paths = [options[name] for name in names if isinstance(options.get(name), str)]
    return {path: hash_of_data(Path(path)) for path in paths if Path(path).exists()}


def hash_of_data(path: Path) -> str:
    """Return the hash of a file's content, or of a folder's file names and sizes. Raises OSError.

    Above `WHOLE_BYTES`, only the file's size and both ends are hashed: a terabyte would take hours.
    """
    if path.is_dir():
        return _hash_of_folder(path)
    found = path.stat()
    key = (str(path), found.st_mtime_ns, found.st_size)
    if key not in _data_hashes:
        _data_hashes[key] = _hash_of_large(path, found.st_size)
    return _data_hashes[key]


def _hash_of_large(path: Path, size: int) -> str:
    if size <= WHOLE_BYTES:
        return hash_of(path)
    with path.open("rb") as file:
        head = file.read(_END_BYTES)
        file.seek(-_END_BYTES, os.SEEK_END)
        return hashlib.sha256(b"%d %s %s" % (size, head, file.read())).hexdigest()[:_HASH_CHARACTERS]


def _hash_of_folder(path: Path) -> str:
    whole = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            one = Path(folder, name)
            whole.update(f"{one.relative_to(path)} {one.stat().st_size}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()[:_HASH_CHARACTERS]
