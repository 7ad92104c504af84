"""What keeps an enqueued trial of a study from starting, and the command that lets it start."""

from __future__ import annotations

import shlex

from studies.records import StudyRecord

_LIMIT_OF_REASON = {"budget_usd": "usd", "budget_hours": "hours", "budget_trials": "trials"}


def what_keeps_waiting(record: StudyRecord) -> str:
    """Return one line that says why no enqueued trial starts, and what to do; empty if the next free slot takes it."""
    resume = f"automl resume {shlex.quote(record.name)}"
    trials = record.budget.get("trials")
    if trials is not None and trials.limit is not None and trials.spent >= trials.limit:
        reached = f"{trials.spent:g} of the {trials.limit:g} trials of the budget are started"
        when = f"; when {record.name} has ended, " if record.state == "running" and record.driven else ": "
        return f"{reached}{when}`{resume} --set budget.trials={_with_queue(record)}` starts it"
    if record.state == "closed":
        limit = _LIMIT_OF_REASON.get(record.stop_reason or "")
        given = f"budget.{limit}=" if limit else "budget.LIMIT="
        return f"{record.name} has ended: `{resume} --set {given}...` with more budget starts it"
    if record.state == "failed":
        return f"{record.name} has failed: `{resume}` starts it"
    if record.state == "drained" or record.is_abandoned:
        return f"{record.name} does not run: `{resume}` starts it"
    return ""


def _with_queue(record: StudyRecord) -> int:
    """The least limit under which everything that is enqueued starts."""
    return len(record.started) + max(len(record.enqueued), 1)
