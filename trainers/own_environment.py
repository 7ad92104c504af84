"""Variables that tell a user's own calls of trackers, such as MLflow, which trial they belong to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_TRACKING_URI, _TRACKER_PREFIX = "MLFLOW_TRACKING_URI", "MLFLOW_"
_SQLITE = "sqlite:///"


def variables_here(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold on this machine.

    A SQLite file that is not on this machine would be made here, and nobody would look into it.
    """
    uri = variables.get(_TRACKING_URI, "")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file():
        return {name: value for name, value in variables.items() if not name.startswith(_TRACKER_PREFIX)}
    return dict(variables)


@contextmanager
def own_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let this process have the variables that it has not set itself.

    A run of MLflow that is left open is ended: the calls of the next trial in this thread would go into it.
    """
    added = {name: value for name, value in variables_here(variables).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        _end_run()
        for name in added:
            os.environ.pop(name, None)


def _end_run() -> None:
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or not hasattr(mlflow, "active_run"):
        return
    with suppress(Exception):  # whatever its store raises is no fault of the training, which has ended
        while mlflow.active_run() is not None:
            mlflow.end_run("FAILED" if sys.exc_info()[0] is not None else "FINISHED")
