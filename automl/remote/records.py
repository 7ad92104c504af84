"""Studies of a service, read as those of a store are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from automl.remote.client import ServiceClient, study_path
from automl.remote.errors import UnreachableError
from automl.remote.patience import patiently
from automl.remote.record_json import read
from search_spaces.errors import UserError
from studies.records import StudyRecord


def record_of(client: ServiceClient, study: str | None) -> StudyRecord:
    """Return a study as committed.

    Args:
        client: Client of the service.
        study: Name of the study; None takes the newest one that has started.

    Raises:
        UserError: There is no such study, or none at all.
    """
    if study is None:
        lines = studies_of(client)
        if not lines:
            raise UserError("study: the service has started none yet; `automl launch SPEC` submits one")
        study = str(lines[-1]["study"])
    text = client.text(study_path(study, "record"))
    try:
        return read(text)
    except (ValueError, KeyError, TypeError):
        raise UnreachableError(
            f"{client.url} sends records of another version of automl; install its version"
        ) from None


def studies_of(client: ServiceClient) -> list[dict[str, Any]]:
    """Return the rows of `automl list --json`, oldest first."""
    found: list[dict[str, Any]] = client.get("/lines")
    return found


def looker(client: ServiceClient, study: str) -> Callable[[], StudyRecord]:
    """Return a function that reads a study again and again, and is patient with a service that starts anew."""
    return lambda: patiently(lambda: record_of(client, study))
