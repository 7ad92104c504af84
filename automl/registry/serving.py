"""Versions of the registry as a server asks for them: a process of its own looks which one has the alias now.

MLflow starts threads, of which a process that is forked later has none; so the server's master must not have it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from automl.exporting.export_errors import ExportError
from automl.registry.registered import Registry, Version
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.sources import FollowedSource, write_place

_KEPT = 2
"""Number of versions whose files stay; a worker may be loading the one before the newest."""


class RegistryFolder:
    """The files of the version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names, in a folder.

    Raises:
        ExportError: The registry does not answer.
    """

    def __init__(self, uri: str, mlflow: str | None, folder: Path) -> None:
        self._uri, self._registry, self._folder = uri, Registry(mlflow, makes=False), folder
        self._fetched: list[tuple[str, str, str]] = []

    def look(self) -> dict[str, str]:
        """Return path and version; the files are fetched when it is another version than before.

        Raises:
            ExportError: There is no such version, or its files cannot be had.
        """
        version = self._registry.find(self._uri)
        if not self._fetched or self._fetched[-1][0] != version.label:
            self._fetch(version)
        label, _, path = self._fetched[-1]
        return {"path": path, "version": label}

    def _fetch(self, version: Version) -> None:
        folder = mkdtemp(dir=self._folder)
        try:
            path = str(self._registry.package(version, Path(folder)))
        except BaseException:
            shutil.rmtree(folder)  # the next look comes in seconds, and would leave another one
            raise
        self._fetched.append((version.label, folder, path))
        while len(self._fetched) > _KEPT:
            shutil.rmtree(self._fetched.pop(0)[1])


@contextmanager
def followed(uri: str, mlflow: str | None, poll_seconds: float) -> Iterator[FollowedSource]:
    """Give the newest version to a server, as long as it runs.

    Raises:
        ServeError: There is none.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "place.json")
        command = [sys.executable, "-m", __name__, uri, mlflow or "", folder, str(poll_seconds)]
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - Ctrl-C is the server's
        try:
            while not file.exists():
                if process.poll() is not None:
                    raise ServeError(f"MODEL: the process that asks the registry ended with {process.returncode}")
                time.sleep(0.05)
            yield FollowedSource(file)
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Write into a folder where the newest version lies, again and again, as long as the server lives."""
    uri, mlflow, folder, poll_seconds = sys.argv[1:]
    server, file = os.getppid(), Path(folder, "place.json")
    registry: RegistryFolder | None = None
    while os.getppid() == server:
        try:
            registry = registry or RegistryFolder(uri, mlflow or None, Path(folder))
            found = registry.look()
        except ExportError as error:
            found = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001 - the looking must go on, whatever a registry does
            found = {"problem": f"MODEL: it cannot be looked at: {type(error).__name__}: {error}"}
        write_place(file, found)
        time.sleep(float(poll_seconds))


if __name__ == "__main__":
    main()
