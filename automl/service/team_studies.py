"""The studies of a team, limited to a caller's rights, for routes, pages and tools."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from automl.launching.launch_or_resume import check_budget
from automl.service.http_errors import ConflictError, ForbiddenError, MissingError
from automl.service.limits import SPECS, spec_within
from automl.service.operator_policy import CHANGEABLE, Policy
from automl.stored.open_store import from_store, started_trial, stored_form
from automl.stored.requests import cancel_trial, enqueue_trial
from automl.stored.study_deletion import delete_study, doomed
from automl.terminal.explanation import explain
from automl.terminal.summary import document_of
from reports.phrases import exact_usd
from search_spaces.messages import found, listed
from studies.queueing import job_rows
from studies.queueing.access_tokens import Identity
from studies.queueing.accounts import Account, AccountKind
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import MOST_NAME_CHARS, MOST_PRIORITY, OVER, Job, JobKind
from studies.records.records import MOST_USD, NANO, StudyRecord
from studies.results.analysis import trial_rows
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, apply_resume_overrides, parse_spec, split_override
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store

MEMBERS_PRIORITY = 0  # highest priority for a member; admins may exceed it
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,60}")
_TOLD = ("kind", "study", "project", "user", "priority", "state", "reason", "slots", "request", "submitted_at",
         "queued_at", "ended_at")  # fmt: skip
"""Attributes of a job that `plain_job` returns unchanged."""


class TeamStudies:
    """The jobs and studies of a store, limited to an identity's rights."""

    def __init__(self, store: Store, policy: Policy, identity: Identity) -> None:
        self._policy, self._queue = policy, JobQueue(store)
        self.store, self.identity = store, identity

    def jobs(self) -> list[Job]:
        """Return the caller's visible jobs, oldest first, except completely deleted jobs."""
        return [job for job in self.jobs_that_cost() if not job.is_gone]

    def jobs_that_cost(self) -> list[Job]:
        """Return the caller's visible jobs, including deleted jobs, oldest first."""
        return self._queue.jobs(project=None if self.identity.is_admin else self.identity.project)

    def waiting(self) -> list[Job]:
        """Return the caller's visible waiting jobs, in the order of their start."""
        return [job for job in self._queue.waiting() if self.identity.sees(job.project)]

    def job(self, name: str) -> Job:
        """Return a study's job, named with or without the project. Raises MissingError if no such job is visible."""
        for candidate in dict.fromkeys((self.stored_name(name), name)):
            job = self._queue.find(candidate)
            if job is not None and self.identity.sees(job.project):
                return job
        raise MissingError(f"study: found {name!r}, allowed: a study that you may see")

    def record(self, name: str) -> StudyRecord:
        """Return a study's stored state. Raises MissingError if it is invisible, or has not started."""
        job = self.job(name)
        record = _record_of(self.store, job)
        if record is None:
            raise _not_started(job)
        return record

    def started(self, name: str) -> str:
        """Return a started study's stored name. Raises MissingError if the study has not started."""
        job = self.job(name)
        if self.store.study_row(job.study) is None:
            raise _not_started(job)
        return job.study

    def status(self, name: str) -> dict[str, Any]:
        """Return a study's `job`, and as `study` the values of `automl status --json`, or None before the start."""
        job = self.job(name)
        record = _record_of(self.store, job)
        return {"job": plain_job(job), "study": None if record is None else document_of(record, report=None)}

    def version(self, name: str) -> tuple[object, ...]:
        """Return a value that changes with a study's status. Raises MissingError if the study is invisible."""
        with self.store.snapshot() as connection:
            for candidate in dict.fromkeys((self.stored_name(name), name)):
                row = job_rows.look(connection, candidate)
                if row is not None and self.identity.sees(row.project):
                    return tuple(row)
        raise MissingError(f"study: found {name!r}, allowed: a study that you may see")

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the values of `automl trials --json`."""
        return trial_rows(self.record(name))

    def explain(self, name: str, trial: int) -> dict[str, Any]:
        """Return the values of `automl explain --json`. Raises MissingError if the study or trial does not exist."""
        record = self.record(name)
        try:
            return dict(explain(record, started_trial(record, trial)))
        except StoreError as error:
            raise MissingError(str(error)) from None

    def accounts(self) -> list[Account]:
        """Return the caller's spending accounts; for admins, all accounts."""
        mine = {("user", self.identity.user), ("project", self.identity.project)}
        return [one for one in self._queue.accounts() if self.identity.is_admin or (one.kind, one.name) in mine]

    def stored_name(self, name: str) -> str:
        """Return a study's stored name: with the project in front, except without tokens."""
        if self.identity.token_id is None or name.startswith(f"{self.identity.project}."):
            return name
        return f"{self.identity.project}.{name}"

    def admitted(self, given: Mapping[str, Any] | str, *, code: str | None = None) -> tuple[StudySpec, str]:
        """Check a spec (mapping or YAML text), and return it with the folder of its code and relative paths.

        Raises SpecError if the spec is wrong, too long or forbidden, BusyError if too many specs of the caller wait,
        ForbiddenError if the caller may only read, because a check runs the task's code.
        """
        self.check_may_write()
        base_folder = self._policy.base_folder(code, self.identity.project)
        with SPECS.turn():
            spec = parse_spec(spec_within(given, "spec"), "spec")
        _check_name(spec.study, self.stored_name(spec.study))
        spec = spec.model_copy(update={"study": self.stored_name(spec.study)})
        spec = self._policy.admit(spec, source="spec", base_folder=base_folder, project=self.identity.project)
        learnt = tuple(self._learnt(name) for name in spec.search.from_studies)
        search = spec.search.model_copy(update={"from_studies": learnt})
        # Earlier studies are read from the service's store, not from the submitter's own store.
        return spec.model_copy(update={"search": search, "store": self.store.url}), str(base_folder)

    def _learnt(self, name: str) -> str:
        try:
            job = self.job(name)
        except MissingError:
            raise SpecError("spec", ("search", "from_studies"), found(name, "studies of this service")) from None
        if self.store.study_row(job.study) is None:  # a later reader's error would list other studies of the store
            problem = f"found {name!r}, which is {job.state}, allowed: studies that have started"
            raise SpecError("spec", ("search", "from_studies"), problem)
        return job.study

    def submit(
        self, given: Mapping[str, Any] | str, *, code: str | None = None, priority: int = 0, kind: JobKind = "study"
    ) -> Job:
        """Queue a study.

        Args:
            code: Name of the operator's code folder with the task and relative paths.
            priority: Jobs of higher priority start first, and displace lower jobs.

        Raises:
            SpecError: The spec is wrong or forbidden.
            ForbiddenError: The caller may only read, or may not set this priority.
            ConflictError: A study of this name exists.
        """
        self.check_may_write()
        self._check_priority(priority)
        spec, base_folder = self.admitted(given, code=code)
        slots = spec.resources.slots
        submission = Submission(
            kind=kind,
            study=spec.study,
            project=self.identity.project,
            user=self.identity.user,
            priority=priority,
            spec=stored_form(spec),
            base_folder=base_folder,
            slots=None if slots == "auto" else slots,
            limit_nano_usd=nano_usd_of(spec),
        )
        try:
            return self._queue.submit(submission)
        except StoreError as error:
            raise ConflictError(str(error)) from None

    def stop(self, name: str) -> Job:
        """Stop a study with checkpoints. `resume` continues it."""
        return self._asked(name, "stop")

    def cancel(self, name: str) -> Job:
        """Stop a study permanently, with checkpoints. Its results remain."""
        return self._asked(name, "cancel")

    def resume(self, name: str, overrides: Sequence[str] = ()) -> Job:
        """Queue an ended study again. `overrides` may change the budget and faults.

        Raises ForbiddenError if the caller may only read, or may not change another user's budget, ConflictError if the
        study has not ended or is being confirmed, SpecError if an override is wrong.
        """
        self.check_may_write()
        job = self.job(name)
        try:
            self._queue.check_may_go_on(job)  # before the spec is changed
            limit = change_spec(self.store, job, overrides, self.identity)
            return self._queue.queue_again(job, limit_nano_usd=limit)
        except StoreError as error:
            raise ConflictError(str(error)) from None

    def cancel_trial(self, name: str, trial: str) -> dict[str, Any]:
        """Stop a trial permanently, without waiting. Raises MissingError if the study has not started."""
        self.check_may_write()
        return cancel_trial(self.store, self.started(name), trial, wait_seconds=0.0)

    def enqueue(self, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Train a trial with these parameters next. Raises MissingError if the study has not started."""
        self.check_may_write()
        return enqueue_trial(self.store, self.started(name), params)

    def set_priority(self, name: str, priority: int) -> Job:
        """Change the priority of a job."""
        self.check_may_write()
        self._check_priority(priority)
        return self._queue.set_priority(self.job(name), priority)

    def delete(self, name: str) -> dict[str, Any]:
        """Delete an ended study with its checkpoints and copies. Its cost stays in the accounts.

        An interrupted deletion can be repeated. Raises ConflictError if the study has not ended, StoreError if it is
        running or being confirmed.
        """
        self.check_may_write()
        job = self.job(name)
        if job.state not in OVER:
            raise ConflictError(f"the study {job.study!r} is {job.state}. Cancel it before you delete it")
        if self.store.study_row(job.study) is not None:
            return delete_study(self.store, doomed(self.store, job.study))
        try:
            self._queue.settle_deleted(job)
        except StoreError as error:
            raise ConflictError(str(error)) from None
        self._queue.free_name(job)
        ended = "is deleted; its trainings stay in the study" if job.kind == "confirm" else "never started"
        return {"study": job.study, "message": f"{job.study} {ended}"}

    def set_limit(self, kind: AccountKind, name: str, usd: float | None) -> None:
        """Limit spending over all studies; None removes the limit. Admins only."""
        if not self.identity.is_admin:
            raise ForbiddenError("limits: only an admin may set them. Ask an admin")
        self._queue.set_limit(kind, name, None if usd is None else round(usd * NANO))

    def _asked(self, name: str, what: Any) -> Job:
        self.check_may_write()
        job = self._queue.ask(self.job(name), what)
        row = self.store.study_row(job.study)
        if job.state == "running" and row is not None:  # its controller drains, even if its worker is frozen
            leases.request_stop(self.store, row.id)
        return job

    def check_may_write(self) -> None:
        """Raise ForbiddenError if the caller may only read."""
        if self.identity.role == "viewer":
            raise ForbiddenError("role: a viewer may only read. Ask a member or an admin")

    def _check_priority(self, priority: int) -> None:
        most = MOST_PRIORITY if self.identity.is_admin else MEMBERS_PRIORITY
        if not -MOST_PRIORITY <= priority <= most:
            raise ForbiddenError(f"priority: found {priority}, allowed: -{MOST_PRIORITY} to {most} in your role")


def plain_job(job: Job) -> dict[str, Any]:
    """Return a job as plain data, in dollars."""
    limit = None if job.limit_nano_usd is None else job.limit_nano_usd / NANO
    plain = {name: getattr(job, name) for name in _TOLD}
    worker = None if job.run is None else job.run.worker
    return plain | {"worker": worker, "limit_usd": limit, "spent_usd": job.ledger_nano_usd / NANO}


def plain_account(account: Account) -> dict[str, Any]:
    """Return a spending account as plain data, in dollars."""
    return {
        "kind": account.kind,
        "name": account.name,
        "limit_usd": account.limit_nano_usd / NANO,
        "spent_usd": account.spent_nano_usd / NANO,
        "promised_usd": account.promised_nano_usd / NANO,
    }


def _check_name(given: str, stored: str) -> None:
    """Raise SpecError for an invalid name, or a name too long together with the project's."""
    if _NAME.fullmatch(given) is None:
        raise SpecError("spec", ("study",), found(given, "letters, digits, - _ and ., at most 60 of them"))
    if len(stored) > MOST_NAME_CHARS:
        most = MOST_NAME_CHARS - (len(stored) - len(given))
        raise SpecError("spec", ("study",), found(given, f"at most {most} characters in this project"))


def _record_of(store: Store, job: Job) -> StudyRecord | None:
    try:
        return load_study(store, job.study)
    except StoreError:
        return None


def _not_started(job: Job) -> MissingError:
    if job.confirms:
        allowed = f"{job.confirms!r}, their study"
        return MissingError(f"the job {job.study!r} confirms models of another study. Name {allowed}")
    if job.state == "deleted":
        return MissingError(f"the study {job.study!r} is deleted")
    return MissingError(f"the study {job.study!r} is {job.state} and has not started yet")


def change_spec(store: Store, job: Job, overrides: Sequence[str], identity: Identity) -> int | None:
    """Apply overrides (`path=value`) to a spec. Returns the budget in nano-dollars, or None without a limit.

    Raises ForbiddenError if the caller may not change the budget, ConflictError if the study has never started,
    SpecError if an override is wrong, or the job has no such setting.
    """
    for override in overrides:
        section = str(split_override(override)[0][0])
        if section not in CHANGEABLE:
            raise SpecError("overrides", (section,), found(override, listed(CHANGEABLE)))
        if section == "budget" and not (identity.is_admin or identity.user == job.user):  # the job's user would pay
            allowed = "Only this user and admins may change its budget"
            raise ForbiddenError(f"budget: this study belongs to {job.user}. {allowed}")
    if job.kind == "confirm":
        return _confirm_limit(job, overrides)
    row = store.study_row(job.study)
    if row is None:
        if overrides:
            raise ConflictError(f"the study {job.study!r} never started, so it cannot be changed. Submit it again")
        return job.limit_nano_usd
    spec = apply_resume_overrides(from_store(row.spec, job.study), overrides)
    if overrides:
        check_budget(load_study(store, job.study), spec, overrides)
        store.change_spec(row.id, stored_form(spec))
    return nano_usd_of(spec)


def _confirm_limit(job: Job, overrides: Sequence[str]) -> int | None:
    """Return a confirm job's new budget in nano-dollars. Raises SpecError for overrides of other settings."""
    limit = job.limit_nano_usd
    for override in overrides:
        path, usd = split_override(override)
        if path != ("budget", "usd"):
            raise SpecError("overrides", path, found(override, "budget.usd, of a confirmation"))
        spent_usd = job.spent_nano_usd / NANO
        if isinstance(usd, bool) or not isinstance(usd, int | float) or not spent_usd < usd <= MOST_USD:
            allowed = f"a number above the {exact_usd(spent_usd)} that are spent, and up to 1e9"
            raise SpecError("overrides", path, found(usd, allowed))
        limit = round(usd * NANO)
    return limit


def nano_usd_of(spec: StudySpec) -> int | None:
    """Return a spec's budget in nano-dollars, or None without a limit."""
    return None if spec.budget.usd is None else round(spec.budget.usd * NANO)
