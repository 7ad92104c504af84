"""Places where a server finds and polls for its model."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import ModelError
from ..model import read_manifest
from .errors import ServeError

_SILENT_SECONDS = 120.0  # most seconds since the last write for a `FollowedSource`; its writer polls every few seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Location of a model on this machine. `version` None: as in the manifest."""

    path: str
    version: str | None
    fingerprint: str


class Source(Protocol):
    """Returns the newest model's location."""

    def look(self) -> Place:
        """Return the newest model's location. Raises ServeError if there is no model now."""


class PathSource:
    """An exported folder or file, replaceable at any time."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def look(self) -> Place:
        """Return the model's location. Raises ServeError if there is no model."""
        try:
            if self._path.suffix != ".onnx" or not self._path.is_file():  # .onnx needs ONNX Runtime loaded
                read_manifest(self._path)
            files = [one for one in self._path.iterdir() if one.is_file()] if self._path.is_dir() else [self._path]
            stats = [(one.name, one.stat()) for one in sorted(files)]
        except ModelError as error:
            raise ServeError(f"MODEL: {error}") from None
        except OSError as error:
            raise ServeError(f"MODEL: {self._path} cannot be read: {error.strerror}") from None
        parts = [f"{name} {one.st_ino} {one.st_size} {one.st_mtime_ns}" for name, one in stats]
        return Place(path=str(self._path.absolute()), version=None, fingerprint="\n".join(parts))


class FollowedSource:
    """A file with the newest model's location or a problem, written by another process with `write_place`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def look(self) -> Place:
        """Return the written location. Raises ServeError for a problem, or if the writer has ended."""
        content: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        if "problem" in content:
            raise ServeError(content["problem"])
        if time.time() - self._file.stat().st_mtime > _SILENT_SECONDS:
            raise ServeError("MODEL: the process that checks for new versions has ended. Start the server again")
        return Place(path=content["path"], version=content["version"], fingerprint=content["version"])


def write_place(file: Path, content: dict[str, str]) -> None:
    """Write `path` and `version` of the newest model, or a `problem`, for `FollowedSource`."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(file)
