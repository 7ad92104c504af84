"""A store for its user's programs: studies of the queue, and studies started by `automl launch`."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from automl.service.http_errors import ConflictError
from automl.service.team_studies import TeamStudies
from automl.stored.requests import stop_study
from studies.queueing.jobs import Job, JobState
from studies.records.records import StudyLine, StudyState
from studies.storage.reading.reader import list_studies

_STATES: Mapping[StudyState, JobState] = {
    "running": "stopped", "drained": "stopped", "closed": "done", "failed": "failed",
}  # fmt: skip
"""The queue's words for states of studies without a controller."""
_NO_JOB = 0  # id of a job that is not in the queue


class LaunchedStudies(TeamStudies):
    """Jobs of a store, and studies started outside the queue, which can be read and stopped."""

    def jobs(self) -> list[Job]:
        """Return the jobs and launched studies, oldest first."""
        queued = super().jobs()
        known = {job.study for job in queued}
        launched = [self._job_of(line) for line in list_studies(self.store) if line.name not in known]
        return sorted([*queued, *launched], key=lambda job: job.submitted_at)

    def job(self, name: str) -> Job:
        """Return a study's job. Raises MissingError if neither job nor study exists."""
        for line in list_studies(self.store):
            if line.name == name and self._queue.find(name) is None:
                return self._job_of(line)
        return super().job(name)

    def resume(self, name: str, overrides: Sequence[str] = ()) -> Job:
        """Queue an ended study again. Raises ConflictError if it was started outside the queue."""
        if self.job(name).id == _NO_JOB:
            changes = "".join(f" --set {shlex.quote(one)}" for one in overrides)
            command = f"automl resume {shlex.quote(name)}{changes}"
            raise ConflictError(f"{name} was launched without the queue. Continue it in a terminal: `{command}`")
        return super().resume(name, overrides)

    def _asked(self, name: str, what: Any) -> Job:
        if self.job(name).id != _NO_JOB:
            return super()._asked(name, what)
        stop_study(self.store, name, wait_seconds=0.0)
        return self.job(name)

    def _job_of(self, line: StudyLine) -> Job:
        state, created = "running" if line.driven else _STATES[line.state], line.created_at.timestamp()
        return Job(
            id=_NO_JOB, kind="study", study=line.name, project=self.identity.project, user=self.identity.user,
            priority=0, state=state, reason="", slots=None, limit_nano_usd=None, spent_nano_usd=line.cost_nano_usd,
            request=None, submitted_at=created, queued_at=created, ended_at=None,
        )  # fmt: skip
