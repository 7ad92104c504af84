"""Tools on a service elsewhere, with a user's token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from automl.remote.client import ServiceClient, study_path


class ServiceBackend:
    """Asks a service.

    Args:
        client: Client of the service.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    def accounts(self) -> list[dict[str, Any]]:
        """Return the limits on spending that concern the user."""
        return list(self._client.get("/accounts"))

    def check(self, spec: Mapping[str, Any], code: str | None) -> dict[str, Any]:
        """Return what a study would do and cost, and queue nothing."""
        return dict(self._client.post("/studies/check", {"spec": spec, "code": code}))

    def submit(self, spec: Mapping[str, Any], code: str | None, priority: int) -> dict[str, Any]:
        """Queue a study; returns its job."""
        return dict(self._client.post("/studies", {"spec": spec, "code": code, "priority": priority}))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the user may see, oldest first."""
        return list(self._client.get("/studies"))

    def status(self, study: str) -> dict[str, Any]:
        """Return the job of a study, and under `study` its summary, None before its start."""
        return dict(self._client.get(study_path(study)))

    def trials(self, study: str) -> list[dict[str, Any]]:
        """Return the trials of a study."""
        return list(self._client.get(study_path(study, "trials")))

    def explain(self, study: str, trial: int) -> dict[str, Any]:
        """Return why a trial is in its state."""
        return dict(self._client.get(study_path(study, "trials", trial)))

    def stop(self, study: str) -> dict[str, Any]:
        """Let a study drain; returns its job."""
        return dict(self._client.post(study_path(study, "stop")))

    def resume(self, study: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Queue a study again that has ended; returns its job."""
        return dict(self._client.post(study_path(study, "resume"), {"overrides": list(overrides)}))

    def check_confirm(self, study: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
        """Return what training models again would train and cost, and queue nothing."""
        body = {"points": list(points), "seeds": seeds}
        return dict(self._client.post(study_path(study, "confirm", "check"), body))

    def confirm(self, study: str, points: Sequence[str], seeds: int, usd: float) -> dict[str, Any]:
        """Queue trainings of models with fresh seeds; returns their job."""
        body = {"points": list(points), "seeds": seeds, "usd": usd}
        return dict(self._client.post(study_path(study, "confirm"), body))

    def why_no_training_here(self) -> str:
        """Return nothing: this process runs on the user's own machine."""
        return ""
