"""Sources of models, polled for newer models."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import ModelError
from ..model import read_manifest
from .errors import ServeError

_SILENT_SECONDS = 120.0  # longest silence in seconds of the writer of a `FollowedSource`, which polls every few seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A model on this machine. `version` None takes the name from the model."""

    path: str
    version: str | None
    fingerprint: str


class Source(Protocol):
    """Reports the newest model."""

    def look(self) -> Place:
        """Return the place. Raises ServeError if there is none now."""


class PathSource:
    """A folder or file of `automl export`, which may be replaced."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def look(self) -> Place:
        """Return the place. Raises ServeError if there is no model."""
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
    """A file in which another process writes the newest model's place, or a problem: see `write_place`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def look(self) -> Place:
        """Return the place. Raises ServeError if the other process has none, or has ended."""
        content: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        if "problem" in content:
            raise ServeError(content["problem"])
        if time.time() - self._file.stat().st_mtime > _SILENT_SECONDS:
            raise ServeError("MODEL: the process that checks for new versions has ended. Start the server again")
        return Place(path=content["path"], version=content["version"], fingerprint=content["version"])


def write_place(file: Path, content: dict[str, str]) -> None:
    """Write `path` and `version` of the newest model, or a `problem`, for a `FollowedSource`."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(file)
