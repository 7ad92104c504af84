"""Tools on a store: that of this machine, or that of the service in which they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from automl.service import confirm_jobs
from automl.service.checking import plan
from automl.service.team_studies import TeamStudies, plain_account, plain_job


class StoreBackend:
    """Acts on a store with the rights of an identity.

    Args:
        studies: Studies as the identity may see and change them.
    """

    def __init__(self, studies: TeamStudies) -> None:
        self._studies = studies

    def accounts(self) -> list[dict[str, Any]]:
        """Return the limits on spending that concern the user."""
        return [plain_account(one) for one in self._studies.accounts()]

    def check(self, spec: Mapping[str, Any], code: str | None) -> dict[str, Any]:
        """Return what a study would do and cost, and queue nothing."""
        return plan(*self._studies.admitted(spec, code=code))

    def submit(self, spec: Mapping[str, Any], code: str | None, priority: int) -> dict[str, Any]:
        """Queue a study; returns its job."""
        return plain_job(self._studies.submit(spec, code=code, priority=priority))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the user may see, oldest first."""
        return [plain_job(job) for job in self._studies.jobs()]

    def status(self, study: str) -> dict[str, Any]:
        """Return the job of a study, and under `study` its summary, None before its start."""
        return self._studies.status(study)

    def trials(self, study: str) -> list[dict[str, Any]]:
        """Return the trials of a study."""
        return self._studies.trials(study)

    def explain(self, study: str, trial: int) -> dict[str, Any]:
        """Return why a trial is in its state."""
        return self._studies.explain(study, trial)

    def stop(self, study: str) -> dict[str, Any]:
        """Let a study drain; returns its job."""
        return plain_job(self._studies.stop(study))

    def resume(self, study: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Queue a study again that has ended; returns its job."""
        return plain_job(self._studies.resume(study, overrides))

    def check_confirm(self, study: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
        """Return what training models again would train and cost, and queue nothing."""
        return confirm_jobs.check(self._studies, study, points, seeds)

    def confirm(self, study: str, points: Sequence[str], seeds: int, usd: float) -> dict[str, Any]:
        """Queue trainings of models with fresh seeds; returns their job."""
        return plain_job(confirm_jobs.submit(self._studies, study, points, seeds, usd))

    def why_no_training_here(self) -> str:
        """Return why the user may not train on the machine of this process; empty if they may.

        What is trained there passes the queue and the accounts by, so in a service only an admin may.
        """
        if self._studies.identity.is_admin:
            return ""
        return "role: trains on the machine of the service, past its queue and accounts; allowed: admin"
