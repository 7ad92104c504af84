"""Where models come from, and whether there is another one now."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import ModelError
from ..model import read_manifest
from .errors import ServeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A model on this machine.

    Attributes:
        path: Where it lies.
        version: Name of its version; None lets the model itself tell it.
        fingerprint: Differs where the model does.
    """

    path: str
    version: str | None
    fingerprint: str

    def plain(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class Source(Protocol):
    """Says where the newest model lies."""

    def look(self) -> Place:
        """Return the place; raises ServeError if there is none now. Called in a thread, one call at a time."""

    def served(self, place: Place) -> None:
        """Note that workers serve the model of a place, and load it again when they are replaced."""


class PathSource:
    """A folder or a file that `automl export` wrote, and that may be replaced by another one.

    Args:
        path: Its path.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def look(self) -> Place:
        """Return the place.

        Raises:
            ServeError: There is no model.
        """
        try:
            if self._path.suffix != ".onnx" or not self._path.is_file():  # ONNX Runtime would have to be loaded
                read_manifest(self._path)
            stats = [(one.name, one.stat()) for one in sorted(self._files())]
        except ModelError as error:
            raise ServeError(f"MODEL: {error}") from None
        except OSError as error:
            raise ServeError(f"MODEL: {self._path} cannot be read: {error.strerror}") from None
        parts = [f"{name} {one.st_ino} {one.st_size} {one.st_mtime_ns}" for name, one in stats]
        return Place(path=str(self._path.absolute()), version=None, fingerprint="\n".join(parts))

    def served(self, place: Place) -> None:
        """Do nothing: the files are the user's."""

    def _files(self) -> list[Path]:
        return [one for one in self._path.iterdir() if one.is_file()] if self._path.is_dir() else [self._path]
