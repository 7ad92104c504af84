"""Versions of the registry as a server asks for them: which one has the alias now, and where its files lie."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from automl.exporting.errors import ExportError
from automl.registry.registered import Registry, Version
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.sources import Place


class RegistrySource:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names at the moment.

    Args:
        uri: The name.
        mlflow: Tracking URI of the registry.

    Raises:
        ExportError: The registry does not answer.
    """

    def __init__(self, uri: str, mlflow: str | None) -> None:
        self._uri, self._registry = uri, Registry(mlflow, makes=False)
        self._folders: dict[str, TemporaryDirectory[str]] = {}
        self._place: Place | None = None
        self._served: list[str] = []

    def look(self) -> Place:
        """Return the place of the version; its files are fetched when it is another one than before.

        Raises:
            ServeError: There is no such version, or its files cannot be had.
        """
        try:
            version = self._registry.find(self._uri)
            if self._place is None or self._place.version != version.label:
                self._place = self._fetched(version)
        except ExportError as error:
            raise ServeError(str(error)) from None
        return self._place

    def served(self, place: Place) -> None:
        """Delete the files of versions that are served no more.

        Those of the version before stay, since a worker may still be loading it, and those of the newest one, which
        may be rolled out next.
        """
        self._served = [*self._served[-1:], place.path]
        kept = {*self._served, place.path if self._place is None else self._place.path}
        for path in self._folders.keys() - kept:
            self._folders.pop(path).cleanup()

    def close(self) -> None:
        """Delete the files that were fetched."""
        for folder in self._folders.values():
            folder.cleanup()

    def _fetched(self, version: Version) -> Place:
        folder = TemporaryDirectory()
        try:
            path = str(self._registry.package(version, Path(folder.name)))
        except BaseException:
            folder.cleanup()  # the next look comes in seconds, and would leave another one
            raise
        self._folders[path] = folder
        return Place(path=path, version=version.label, fingerprint=version.label)
