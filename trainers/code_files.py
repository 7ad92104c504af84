"""The files of the user's code that a process has loaded, each with a hash: by them a change of the code is noticed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

OUR_PACKAGES = ("automl", "reports", "search_spaces", "studies", "trainers")
MOST_FILES = 100
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_HASH_CHARACTERS = 16
_hashes: dict[str, str] = {}
"""Hash of each file when it was first seen, which is when it was loaded: later it may have changed."""


def code_files(folders: Sequence[str]) -> dict[str, str]:
    """Return the loaded Python files below some folders, with the hash that each had when it was loaded.

    Args:
        folders: Folders from which the user's task is imported.

    Returns:
        Hashes by path, relative to the folder; of `MOST_FILES` files at most. Installed packages are left out.
    """
    found: dict[str, str] = {}
    # Each trial asks this of thousands of modules, so texts are compared: paths would take 50 ms.
    for folder in (str(Path(one)).rstrip(os.sep) + os.sep for one in folders):
        for module in list(sys.modules.values()):
            file = str(getattr(module, "__file__", None))
            if not file.startswith(folder) or str(getattr(module, "__name__", "")).partition(".")[0] in OUR_PACKAGES:
                continue
            parts = file.removeprefix(folder).split(os.sep)  # noqa: PTH206 - see above
            if _INSTALLED.isdisjoint(parts):
                with suppress(OSError):  # it is gone
                    found["/".join(parts)] = _hash_when_loaded(file)
    return dict(sorted(found.items())[:MOST_FILES])


def _hash_when_loaded(file: str) -> str:
    if file not in _hashes:
        _hashes[file] = hash_of(Path(file))
    return _hashes[file]


def hash_of(path: Path) -> str:
    """Return the hash of a file's content.

    Raises:
        OSError: The file cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_HASH_CHARACTERS]
