"""Queues a study of this machine's user, with the user's own code and paths."""

from collections.abc import Sequence
from pathlib import Path

from automl.launching.prepared_study import prepare
from automl.launching.spec_reading import read_spec
from automl.service.http.gate import local_identity
from automl.stored.open_store import stored_form
from search_spaces.messages import found
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import MOST_NAME_CHARS, Job
from studies.records.records import NANO
from studies.spec.spec_errors import SpecError
from studies.storage.schema.engine import absolute_url
from studies.storage.study_store import Store


def submit_file(path: Path, overrides: Sequence[str], store: str | None, *, priority: int) -> Job:
    """Queue the study of a spec file. Raises SpecError for a wrong spec, StoreError if the study exists."""
    spec, folder = read_spec(path, overrides, store), path.absolute().parent
    if len(spec.study) > MOST_NAME_CHARS:
        raise SpecError(str(path), ("study",), found(spec.study, f"at most {MOST_NAME_CHARS} characters in the queue"))
    prepared = prepare(spec, source=str(path), base_folder=folder)
    identity = local_identity()
    slots, limit = spec.resources.slots, spec.budget.usd
    submission = Submission(
        study=spec.study,
        project=identity.project,
        user=identity.user,
        priority=priority,
        spec=stored_form(prepared.spec),
        base_folder=str(folder),
        slots=None if slots == "auto" else slots,
        limit_nano_usd=None if limit is None else round(limit * NANO),
    )
    return JobQueue(Store(absolute_url(prepared.spec.store, Path.cwd()))).submit(submission)
