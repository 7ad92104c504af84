"""Three ways to reach studies: a store, a service, or a store's queue with the rights of one user."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from automl.stored.open_store import open_store, started_trial
from automl.terminal.options import connection
from search_spaces.messages import found
from studies.records.records import StudyRecord
from studies.storage.reading.reader import list_studies, load_study
from studies.storage.study_store import Store, StoreError

if TYPE_CHECKING:
    from automl.exporting.exports import Target
    from automl.remote.client import ServiceClient
    from automl.service.team_studies import TeamStudies

POLL_SECONDS = 0.5
Deletion = tuple[str, Callable[[], dict[str, Any]]]
"""Description of what a deletion removes, in one line, and the function that deletes."""


def backend_of(store: str | None) -> StoreBackend | ServiceBackend:
    """Return the service of `automl --server`, or the store of `--store`. Raises UserError if both are given."""
    client = connection(store)
    return StoreBackend(store) if client is None else ServiceBackend(client)


class StoreBackend:
    """Backend that uses a store in this process. The store is opened on first use."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    @cached_property
    def store(self) -> Store:
        """Return the opened store. Raises StoreError if there is none."""
        return open_store(self.url)

    def record(self, study: str | None = None) -> StudyRecord:
        """Return a stored study, by default the newest."""
        if study is None:
            names = self.store.study_names()
            if not names:
                raise StoreError("The store has no study yet. Start one with `automl launch SPEC`")
            study = names[-1]
        return load_study(self.store, study)

    def looker(self, study: str) -> Callable[[], StudyRecord]:
        """Return a function that reads the study at each call."""
        from automl.stored.polling import Looker

        return Looker(self.store, study)

    def report_path(self, record: StudyRecord) -> Path:
        """Return the path of a study's HTML report."""
        from automl.stored.reporting import report_path

        return report_path(record, Path.cwd())

    def lines(self) -> list[dict[str, Any]]:
        """Return the rows of `automl list --json`, oldest first."""
        from automl.terminal.study_lines import rows_of

        return rows_of(list_studies(self.store))

    def queue(self) -> list[dict[str, Any]]:
        """Return the running jobs, then the waiting jobs in their order."""
        from automl.service.team_studies import plain_job
        from studies.queueing.job_queue import JobQueue

        queue = JobQueue(self.store)
        return [plain_job(job) for job in (*queue.jobs(states=("running",)), *queue.waiting())]

    def submit_file(self, spec: Path, overrides: Sequence[str], *, code: str | None, priority: int) -> dict[str, Any]:
        """Queue the study of a spec file."""
        del code  # the user's own code is found by its path
        from automl.service.team_studies import plain_job
        from automl.service.workers.local_submission import submit_file

        return plain_job(submit_file(spec, overrides, self.url, priority=priority))

    def enqueue(self, study: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a study to train a trial with these parameters next."""
        from automl.stored.requests import enqueue_trial

        return enqueue_trial(self.store, study, params)

    def drain(self, study: str, wait_seconds: float) -> dict[str, Any]:
        """Save the running trials, stop the study, and wait. Returns `study`, `state`, `driven` and `message`."""
        from automl.stored.requests import stop_study

        return stop_study(self.store, study, wait_seconds=wait_seconds)

    def cancel(self, study: str) -> dict[str, Any]:
        """Cancel a queued study permanently. Returns its job."""
        from automl.service.team_studies import plain_job
        from studies.queueing.job_queue import JobQueue

        queue = JobQueue(self.store)
        if (job := queue.find(study)) is None:
            raise StoreError(f"{study!r} is not in a queue. Name the trial to cancel: `automl cancel {study} TRIAL`")
        return plain_job(queue.ask(job, "cancel"))

    def cancel_trial(self, study: str, trial: str, wait_seconds: float) -> dict[str, Any]:
        """Stop a trial permanently, and wait until it has stopped."""
        from automl.stored.requests import cancel_trial

        return cancel_trial(self.store, study, trial, wait_seconds=wait_seconds)

    def deletion(self, study: str, *, keep_files: bool) -> Deletion:
        """Return what the deletion removes, in words, and a function that deletes."""
        from automl.stored.study_deletion import delete_study, doomed

        what = doomed(self.store, study, keep_files=keep_files)
        return what.in_words(), lambda: delete_study(self.store, what)

    def output(
        self, study: str, trial: int, *, rank: int, attempt: int | None, seed: int | None, follow: bool
    ) -> Iterator[str]:
        """Yield the output of one rank of a trial; with `follow`, until the trial pauses or ends."""
        from automl.stored.rank_logs import followed, log_of, text_of

        started_trial(load_study(self.store, study), trial)
        path = log_of(self.store, study, trial, rank, attempt=attempt, seed=seed)
        if not follow:
            return text_of(path)
        study_id = self.store.require(study).id

        def is_running() -> bool:
            row = self.store.find_trial(study_id, number=trial)
            return row is not None and row.state == "running"

        return followed(path, is_running)

    def export(self, study: str, point: str, out: Path, form: Target, **asked: Any) -> Mapping[str, Any]:
        """Export a model to `out`. Returns the values of `automl export --json`."""
        from automl.exporting.exports import export_point

        folder = self.store.require(study).base_folder
        return export_point(load_study(self.store, study), point, out, base_folder=folder, form=form, **asked)


class ServiceBackend:
    """Backend that calls a service with the user's token. The service checks the user's rights."""

    def __init__(self, client: ServiceClient) -> None:
        self.client = client

    def record(self, study: str | None = None) -> StudyRecord:
        """Return a stored study, by default the newest started study."""
        return self.client.record(study)

    def looker(self, study: str) -> Callable[[], StudyRecord]:
        """Return a function that reads the study at each call, and retries while the service restarts."""
        from automl.remote.client import patiently

        return lambda: patiently(lambda: self.record(study))

    def report_path(self, record: StudyRecord) -> Path:
        """Return the path of a study's HTML report on this machine."""
        return Path.cwd() / f"{record.name}.html"

    def lines(self) -> list[dict[str, Any]]:
        """Return the user's rows of `automl list --json`."""
        return list(self.client.get("/lines"))

    def queue(self) -> list[dict[str, Any]]:
        """Return the running jobs, then the waiting jobs in their order."""
        return [*(job for job in self.jobs() if job["state"] == "running"), *self.client.get("/queue")]

    def submit_file(self, spec: Path, overrides: Sequence[str], *, code: str | None, priority: int) -> dict[str, Any]:
        """Queue the study of a spec file at the service."""
        return self.submit(_read(spec, overrides), code, priority)

    def enqueue(self, study: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a study to train a trial with these parameters next."""
        return self._post(study, "enqueue", params=params)

    def drain(self, study: str, wait_seconds: float) -> dict[str, Any]:
        """Save the running trials, stop the study, and wait. Returns `study`, `state`, `driven` and `message`."""
        until = time.monotonic() + wait_seconds
        name = self.stop(study)["study"]
        while (status := self.status(name))["job"]["state"] == "running" and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        state, driven = (status["study"] or status["job"])["state"], status["job"]["state"] == "running"
        going = f"{name} is draining; its trials have not ended their epochs yet"
        return {"study": name, "state": state, "driven": driven, "message": going if driven else f"{name} is {state}"}

    def cancel(self, study: str) -> dict[str, Any]:
        """Cancel a study permanently. Returns its job."""
        return self._post(study, "cancel")

    def cancel_trial(self, study: str, trial: str, wait_seconds: float) -> dict[str, Any]:
        """Stop a trial permanently, without waiting until it has stopped."""
        del wait_seconds
        return self._post(study, "trials", trial, "cancel")

    def deletion(self, study: str, *, keep_files: bool) -> Deletion:
        """Return what the deletion removes, in words, and a function that deletes."""
        del keep_files
        job = self.status(study)["job"]
        words = f"{job['study']} is {job['state']} at {self.client.url}"
        return words, lambda: dict(self.client.delete(_path(study)))

    def output(
        self, study: str, trial: int, *, rank: int, attempt: int | None, seed: int | None, follow: bool
    ) -> Iterator[str]:
        """Yield the last million characters of one rank's output."""
        del follow
        yield self.client.text(_path(study, "trials", trial, "logs"), rank=rank, attempt=attempt, seed=seed)

    def export(self, study: str, point: str, out: Path, form: Target, **asked: Any) -> Mapping[str, Any]:
        """Export a model to this machine. Returns the values of `automl export --json`."""
        from automl.exporting.atomic_outputs import told_as_output, unpack
        from automl.exporting.exports import check_target

        check_target(out, form)
        asked |= {"point": point, "format": form, "ensemble": asked["ensemble"] or None, "place": str(out.absolute())}
        # Beside the model, where the disk must have space for it in any case.
        with told_as_output(out), TemporaryFile(dir=out.absolute().parent) as archive:
            self.client.download(_path(study, "model"), archive, **asked)
            return unpack(archive, out)

    def accounts(self) -> list[dict[str, Any]]:
        """Return the spending limits that apply to the user."""
        return list(self.client.get("/accounts"))

    def check(self, spec: Mapping[str, Any], code: str | None) -> dict[str, Any]:
        """Return a study's plan and expected cost, without queueing it."""
        return dict(self.client.post("/studies/check", {"spec": spec, "code": code}))

    def check_file(self, spec: Path, overrides: Sequence[str], *, code: str | None) -> dict[str, Any]:
        """Check the study of a spec file, without queueing it."""
        return self.check(_read(spec, overrides), code)

    def submit(self, spec: Mapping[str, Any], code: str | None, priority: int) -> dict[str, Any]:
        """Queue a study at the service."""
        return dict(self.client.post("/studies", {"spec": spec, "code": code, "priority": priority}))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the user may see, oldest first."""
        return list(self.client.get("/studies"))

    def status(self, study: str) -> dict[str, Any]:
        """Return the job; its key `study` has a summary, or None before the study starts."""
        return dict(self.client.get(_path(study)))

    def trials(self, study: str) -> list[dict[str, Any]]:
        """Return the trials of a study."""
        return list(self.client.get(_path(study, "trials")))

    def explain(self, study: str, trial: int) -> dict[str, Any]:
        """Return a trial's state and the decisions that led to it."""
        return dict(self.client.get(_path(study, "trials", trial)))

    def stop(self, study: str) -> dict[str, Any]:
        """Ask a study to save its running trials and stop. Returns its job."""
        return self._post(study, "stop")

    def resume(self, study: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Queue an ended study again. Returns its job."""
        return self._post(study, "resume", overrides=list(overrides))

    def check_confirm(self, study: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
        """Return a confirmation's trainings and cost, without queueing them."""
        return self._post(study, "confirm", "check", points=list(points), seeds=seeds)

    def confirm(self, study: str, points: Sequence[str], seeds: int, usd: float) -> dict[str, Any]:
        """Queue new trainings of saved models with other seeds."""
        return self._post(study, "confirm", points=list(points), seeds=seeds, usd=usd)

    def why_no_training_here(self, *, own_code: bool) -> str:
        """Return an empty text: users may always train on their own machine."""
        del own_code
        return ""

    def _post(self, study: str, *what: object, **body: Any) -> dict[str, Any]:
        return dict(self.client.post(_path(study, *what), body))


class QueueBackend:
    """Backend for a store's queue, with the rights of one user. Workers run the queued studies."""

    def __init__(self, studies: TeamStudies, *, is_own_process: bool = False) -> None:
        self._studies, self._is_own_process = studies, is_own_process

    def accounts(self) -> list[dict[str, Any]]:
        """Return the spending limits that apply to the user."""
        from automl.service.team_studies import plain_account

        return [plain_account(one) for one in self._studies.accounts()]

    def check(self, spec: Mapping[str, Any], code: str | None) -> dict[str, Any]:
        """Return a study's plan and expected cost, without queueing it."""
        from automl.service.subprocess_questions import plan

        return plan(*self._studies.admitted(spec, code=code))

    def submit(self, spec: Mapping[str, Any], code: str | None, priority: int) -> dict[str, Any]:
        """Queue a study."""
        return self._plain(self._studies.submit(spec, code=code, priority=priority))

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that the user may see, oldest first."""
        return [self._plain(job) for job in self._studies.jobs()]

    def status(self, study: str) -> dict[str, Any]:
        """Return the job; its key `study` has a summary, or None before the study starts."""
        return self._studies.status(study)

    def trials(self, study: str) -> list[dict[str, Any]]:
        """Return the trials of a study."""
        return self._studies.trials(study)

    def explain(self, study: str, trial: int) -> dict[str, Any]:
        """Return a trial's state and the decisions that led to it."""
        return self._studies.explain(study, trial)

    def stop(self, study: str) -> dict[str, Any]:
        """Ask a study to save its running trials and stop. Returns its job."""
        return self._plain(self._studies.stop(study))

    def enqueue(self, study: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a study to train a trial with these parameters next."""
        return self._studies.enqueue(study, params)

    def resume(self, study: str, overrides: Sequence[str]) -> dict[str, Any]:
        """Queue an ended study again. Returns its job."""
        return self._plain(self._studies.resume(study, overrides))

    def check_confirm(self, study: str, points: Sequence[str], seeds: int) -> dict[str, Any]:
        """Return a confirmation's trainings and cost, without queueing them."""
        from automl.service.workers.confirm_jobs import check

        return check(self._studies, study, points, seeds)

    def confirm(self, study: str, points: Sequence[str], seeds: int, usd: float) -> dict[str, Any]:
        """Queue new trainings of saved models with other seeds."""
        from automl.service.workers.confirm_jobs import submit

        return self._plain(submit(self._studies, study, points, seeds, usd))

    def why_no_training_here(self, *, own_code: bool) -> str:
        """Return why the user may not train on this machine outside the queue; empty if the user may.

        `own_code`: the training runs code of this folder, or writes to a tracking store that the user names.
        """
        if self._is_own_process:
            return ""
        if not self._studies.identity.is_admin:
            return "role: only an admin may train on the service's machine, since that bypasses its queue and accounts"
        return "task: on the service's machine only built-in tasks are trained, without a tracking store" * own_code

    @staticmethod
    def _plain(job: Any) -> dict[str, Any]:
        from automl.service.team_studies import plain_job

        return plain_job(job)


def _path(study: str, *parts: object) -> str:
    from automl.remote.client import study_path

    return study_path(study, *parts)


def _read(spec: Path, overrides: Sequence[str]) -> dict[str, Any]:
    from studies.spec.spec_errors import SpecError
    from studies.spec.study_spec import apply_overrides
    from studies.spec.yaml_reader import read_yaml_file

    read = read_yaml_file(spec)
    if not isinstance(read, dict):
        raise SpecError(str(spec), (), found(read, "a mapping with at least the key task"))
    return dict(apply_overrides(read, overrides))
