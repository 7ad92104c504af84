"""Changes of a spec on resume: the budget by its payer, the fault tolerance by its project."""

from __future__ import annotations

from collections.abc import Sequence

from automl.launching.launch_or_resume import check_budget
from automl.service.http_errors import ConflictError, ForbiddenError
from automl.service.operator_policy import CHANGEABLE
from automl.stored.specs import from_store, stored_form
from reports.phrases import exact_usd
from search_spaces.wording import found, listed
from studies.queueing.access_tokens import Identity
from studies.queueing.jobs import Job
from studies.records.records import MOST_USD, NANO
from studies.spec.overrides import split_override
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, apply_resume_overrides
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store


def change_spec(store: Store, job: Job, overrides: Sequence[str], identity: Identity) -> int | None:
    """Change the spec of a study; returns its own budget in nano-dollars, None for no limit.

    Args:
        overrides: `path=value` each, as `--set` takes them.

    Raises:
        ForbiddenError: The identity may not change the budget.
        ConflictError: The study has never started.
        SpecError: An override is wrong, or the job has no such setting.
    """
    for override in overrides:
        section = str(split_override(override)[0][0])
        if section not in CHANGEABLE:
            raise SpecError("overrides", (section,), found(override, listed(CHANGEABLE)))
        if section == "budget" and not (identity.is_admin or identity.user == job.user):  # its owner would pay
            allowed = "studies of your own; an admin may change that of all"
            raise ForbiddenError(f"budget: found a study of {job.user}, allowed: {allowed}")
    if job.kind == "confirm":
        return _confirm_limit(job, overrides)
    row = store.study_row(job.study)
    if row is None:
        if overrides:
            raise ConflictError(f"study: found {job.study!r}, which never started; allowed: a new submission")
        return job.limit_nano_usd
    spec = apply_resume_overrides(from_store(row.spec, job.study), overrides)
    if overrides:
        check_budget(load_study(store, job.study), spec, overrides)
        store.change_spec(row.id, stored_form(spec))
    return nano_usd_of(spec)


def _confirm_limit(job: Job, overrides: Sequence[str]) -> int | None:
    """Return the budget of a confirm job in nano-dollars; nothing else of it can change."""
    limit = job.limit_nano_usd
    for override in overrides:
        path, usd = split_override(override)
        if path != ("budget", "usd"):
            raise SpecError("overrides", path, found(override, "budget.usd, of what confirms a study"))
        spent_usd = job.spent_nano_usd / NANO
        if isinstance(usd, bool) or not isinstance(usd, int | float) or not spent_usd < usd <= MOST_USD:
            allowed = f"a number above the {exact_usd(spent_usd)} that are spent, and up to 1e9"
            raise SpecError("overrides", path, found(usd, allowed))
        limit = round(usd * NANO)
    return limit


def nano_usd_of(spec: StudySpec) -> int | None:
    """Return the budget of a study in nano-dollars; None is no limit."""
    return None if spec.budget.usd is None else round(spec.budget.usd * NANO)
