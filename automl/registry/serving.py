"""Versions of the registry as a server asks for them: which one has the alias now, and where its files lie."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from automl.exporting.errors import ExportError
from automl.registry.registered import Registry
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.sources import Place

_KEPT = 2
"""Number of versions whose files are kept: a worker may still be loading those of the one before."""


class RegistrySource:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names at the moment.

    Args:
        uri: The name.
        mlflow: Tracking URI of the registry.

    Raises:
        ExportError: The registry does not answer.
    """

    def __init__(self, uri: str, mlflow: str | None) -> None:
        self._uri, self._registry = uri, Registry(mlflow)
        self._folders: list[TemporaryDirectory[str]] = []
        self._place: Place | None = None

    def look(self) -> Place:
        """Return the place of the version; its files are fetched when it is another one than before.

        Raises:
            ServeError: There is no such version, or its files cannot be had.
        """
        try:
            version = self._registry.find(self._uri)
            if self._place is not None and self._place.version == version.label:
                return self._place
            folder = TemporaryDirectory()
            self._folders.append(folder)
            path = self._registry.package(version, Path(folder.name))
        except ExportError as error:
            raise ServeError(str(error)) from None
        for old in self._folders[:-_KEPT]:
            old.cleanup()
        del self._folders[:-_KEPT]
        self._place = Place(path=str(path), version=version.label, fingerprint=version.label)
        return self._place

    def close(self) -> None:
        """Delete the files that were fetched."""
        for folder in self._folders:
            folder.cleanup()
