"""The files of the user's code that a process has loaded, each with a hash: by them a change of the code is noticed."""

from __future__ import annotations

import hashlib
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
    for folder in map(Path, folders):
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file is None or str(getattr(module, "__name__", "")).partition(".")[0] in OUR_PACKAGES:
                continue
            with suppress(ValueError, OSError):  # it lies elsewhere, or is gone
                path = Path(file).relative_to(folder)
                if not _INSTALLED & set(path.parts):
                    found[path.as_posix()] = _hash_when_loaded(file)
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
