"""Polls the registry for new versions, in a separate process, because MLflow's threads forbid a later fork."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from automl.exporting.atomic_outputs import ExportError
from automl.registry.registered import Registry, Version
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.sources import FollowedSource, write_place

_KEPT = 2  # number of versions whose files are kept, because a worker may still be loading the previous version


class RegistryFolder:
    """Downloads the version of a `models:/` URI."""

    def __init__(self, uri: str, mlflow: str | None, folder: Path) -> None:
        self._uri, self._registry, self._folder = uri, Registry(mlflow, makes=False), folder
        self._fetched: list[tuple[str, str, str]] = []

    def look(self) -> dict[str, str]:
        """Download a new version. Returns `path` and `version`. Raises ExportError if it is unavailable."""
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
            shutil.rmtree(folder)  # otherwise each poll would leave a folder
            raise
        self._fetched.append((version.label, folder, path))
        while len(self._fetched) > _KEPT:
            shutil.rmtree(self._fetched.pop(0)[1])


@contextmanager
def followed(uri: str, mlflow: str | None, poll_seconds: float) -> Iterator[FollowedSource]:
    """Yield a source that follows the newest version. Raises ServeError if the polling process ends."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "place.json")
        command = [sys.executable, "-m", __name__, uri, mlflow or "", folder, str(poll_seconds)]
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - Ctrl-C is left to the server
        try:
            while not file.exists():
                if process.poll() is not None:
                    raise ServeError(
                        f"MODEL: the process that reads the registry ended with exit code {process.returncode}"
                    )
                time.sleep(0.05)
            yield FollowedSource(file)
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Write the newest version's location into a folder until the server ends."""
    uri, mlflow, folder, poll_seconds = sys.argv[1:]
    server, file = os.getppid(), Path(folder, "place.json")
    registry: RegistryFolder | None = None
    while os.getppid() == server:
        try:
            registry = registry or RegistryFolder(uri, mlflow or None, Path(folder))
            found = registry.look()
        except ExportError as error:
            found = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001 - polling must go on after any error of a registry
            found = {"problem": f"MODEL: the registry cannot be read: {type(error).__name__}: {error}"}
        write_place(file, found)
        time.sleep(float(poll_seconds))


if __name__ == "__main__":
    main()
