"""What tools act on: a store of this machine, the store of a service for one of its users, or a service elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Backend(Protocol):
    """Studies as one user may see and change them; all values are plain data, as the service's API has them."""

    def accounts(self) -> list[dict[str, Any]]:
        """Return the limits on spending that concern the user."""

    def check(self, spec: Mapping[str, Any], code: str | None) -> dict[str, Any]:
        """Return what a study would do and cost, and queue nothing."""

    def submit(self, spec: Mapping[str, Any], code: str | None, priority: int) -> dict[str, Any]:
        """Queue a study; returns its job."""

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the user may see, oldest first."""

    def status(self, study: str) -> dict[str, Any]:
        """Return the job of a study, and under `study` its summary, None before its start."""

    def trials(self, study: str) -> list[dict[str, Any]]:
        """Return the trials of a study."""

    def explain(self, study: str, trial: int) -> dict[str, Any]:
        """Return why a trial is in its state."""

    def stop(self, study: str) -> dict[str, Any]:
        """Let a study drain; returns its job."""

    def resume(self, study: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Queue a study again that has ended; returns its job."""

    def check_confirm(self, study: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
        """Return what training models again would train and cost, and queue nothing."""

    def confirm(self, study: str, points: Sequence[str], seeds: int, usd: float) -> dict[str, Any]:
        """Queue trainings of models with fresh seeds; returns their job."""

    def why_no_training_here(self) -> str:
        """Return why the user may not train on the machine of this process; empty if they may."""
