"""Reads jobs, their runs and their accounts from the database."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from studies.queueing.accounts import Account, account
from studies.queueing.jobs import CONFIRM_MARK, ENDED, OVER, Job, JobState, Run, WorkerLine, largest_gang
from studies.queueing.turns import HALF_LIFE_SECONDS, Room, Stay
from studies.storage.reading.reader import of_row
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, clock_of

_IS_OPEN = t.jobs.c.ended_at.is_(None)
_SUBMITTED = sa.type_coerce(t.jobs.c.spec, sa.JSON)
_RESOURCES = (
    sa.case((_IS_OPEN, _SUBMITTED["resources", "device"].as_string())).label("device"),
    sa.case((_IS_OPEN, _SUBMITTED["resources", "cpus_per_rank"].as_integer())).label("cpus_per_rank"),
)
_WORLD_SIZE = ("space", "world_size")
_STORED = sa.select(sa.type_coerce(t.studies.c.spec, sa.JSON)[_WORLD_SIZE]).where(t.studies.c.name == t.jobs.c.study)
_TAKES_ALL = sa.and_(_IS_OPEN, t.jobs.c.slots.is_(None))
_GANGS = (
    sa.case((_TAKES_ALL, _SUBMITTED[_WORLD_SIZE])).label("submitted_gangs"),
    sa.case((_TAKES_ALL, _STORED.correlate(t.jobs).scalar_subquery())).label("stored_gangs"),
)
_OPEN = t.job_runs.c.ended_at.is_(None)

_READ = [one for one in t.jobs.c if one.name not in {"spec", "base_folder"}]
JOBS = sa.select(*_READ, *_RESOURCES, *_GANGS).order_by(t.jobs.c.id)
"""All jobs, oldest first; `device` and `cpus_per_rank` are NULL for ended jobs.

`submitted_gangs` and `stored_gangs` are the parameter `world_size` of the submitted and of the study's spec, for open
jobs that take all slots of their worker.
"""

_OF_WORKER = (t.workers.c.name, t.workers.c.device)
OPEN_RUNS = sa.select(t.job_runs, *_OF_WORKER).join(t.workers, t.workers.c.id == t.job_runs.c.worker_id).where(_OPEN)
"""Open runs, with `name` and `device` of their worker."""

_LATEST_RUNS_OF_QUEUED = (
    sa.select(sa.func.max(t.job_runs.c.id))
    .join(t.jobs, t.jobs.c.id == t.job_runs.c.job_id)
    .where(t.jobs.c.state == "queued")
    .group_by(t.job_runs.c.job_id)
)
CAPS_THAT_ENDED_RUNS = sa.select(t.job_runs.c.job_id, t.job_runs.c.cap_nano_usd).where(
    t.job_runs.c.id.in_(_LATEST_RUNS_OF_QUEUED), t.job_runs.c.outcome == "capped"
)
"""Caps that ended the latest run of waiting jobs."""

_LEFT_POOLS = (
    t.leases.c.pool_opened_at.is_not(None),
    t.leases.c.pool_closed_at.is_(None),
    sa.or_(t.leases.c.job_id == t.jobs.c.id, t.leases.c.job_id.is_(None) & (t.studies.c.name == t.jobs.c.study)),
)
_LATEST_RUN = sa.select(sa.func.max(t.job_runs.c.id)).where(t.job_runs.c.job_id == t.jobs.c.id)
LEFT_RUNS = (
    sa.select(t.job_runs, *_OF_WORKER, t.leases.c.study_id)
    .select_from(t.leases)
    .join(t.studies, t.studies.c.id == t.leases.c.study_id)
    .join(t.jobs, sa.and_(*_LEFT_POOLS))
    .join(t.job_runs, t.job_runs.c.id == _LATEST_RUN.correlate(t.jobs).scalar_subquery())
    .join(t.workers, t.workers.c.id == t.job_runs.c.worker_id)
    # Later leases belong to a command that a user ran, not to the ended job.
    .where(t.leases.c.acquired_at < t.job_runs.c.ended_at)
)
"""Latest ended runs whose study's pool is still open, with `study_id`, and `name` and `device` of the worker."""

LOOK = (
    sa.select(
        t.jobs.c.project, t.jobs.c.state, t.jobs.c.reason, t.jobs.c.request, t.jobs.c.priority,
        t.jobs.c.limit_nano_usd,
        sa.select(t.job_runs.c.id).where(t.job_runs.c.job_id == t.jobs.c.id, _OPEN).scalar_subquery().label("run"),
        t.studies.c.revision, t.studies.c.state.label("study_state"),
    )
    .select_from(t.jobs)
    .outerjoin(t.studies, t.studies.c.name == t.jobs.c.study)
    .where(t.jobs.c.study == sa.bindparam("study"))
)  # fmt: skip
"""Status of the job of `study`, without reading its ledger."""


ALL_REVISIONS = sa.select(t.studies.c.id, t.studies.c.uid, t.studies.c.name, t.studies.c.revision)
"""Id, uid, name and revision of all studies."""
REVISIONS_OF = ALL_REVISIONS.where(t.studies.c.name.in_(sa.bindparam("names", expanding=True)))
"""Id, uid, name and revision of the studies `names`."""


def _charges_of_jobs(*, of_some: bool) -> sa.Select[Any]:
    c = t.charges.c
    ledgers = sa.select(c.study_id, c.lease_id, sa.func.sum(c.cost_nano_usd).label("cost"))
    if of_some:
        ledgers = ledgers.where(c.study_id.in_(sa.bindparam("study_ids", expanding=True)))
    by_lease = ledgers.group_by(c.study_id, c.lease_id).subquery()  # few rows, so joining their leases is cheap
    query = sa.select(by_lease.c.study_id, t.leases.c.job_id, by_lease.c.cost)
    return query.outerjoin(t.leases, t.leases.c.id == by_lease.c.lease_id)


ALL_CHARGES = _charges_of_jobs(of_some=False)
"""Sums of charges in nano-dollars, by study id and confirming job (NULL: the study's own job)."""
CHARGES_OF = _charges_of_jobs(of_some=True)  # sums as in `ALL_CHARGES`, for the studies `study_ids`


MOST_NAMED = 500  # largest number of studies that a query names; for more studies the query reads all


@dataclass(frozen=True, slots=True)
class _Summed:
    """Sums of a study's charges at a revision, in nano-dollars, by confirming job (None: its own job)."""

    revision: int
    by_job: tuple[tuple[int | None, int], ...]


_remembered: WeakKeyDictionary[sa.Engine, dict[str, _Summed]] = WeakKeyDictionary()


def ledger_sums(connection: sa.Connection, studies: Collection[str] | None) -> list[tuple[str, int | None, int]]:
    """Return sums of charges as (study, confirming job or None, nano-dollars); `studies` None means all."""
    known = _remembered.setdefault(connection.engine, {})  # other threads change it, too
    # Read revisions before sums: charges committed in between are summed again next time.
    rows = _rows(connection, studies)
    sums = {row.uid: one for row in rows if (one := known.get(row.uid)) and one.revision == row.revision}
    changed = [row for row in rows if row.uid not in sums]
    by_study = _summed(connection, [row.id for row in changed])
    sums |= {row.uid: _Summed(row.revision, tuple(by_study.get(row.id, ()))) for row in changed}
    known |= sums
    if studies is None:
        for gone in set(known) - sums.keys():
            known.pop(gone, None)
    return [(row.name, job_id, nano_usd) for row in rows for job_id, nano_usd in sums[row.uid].by_job]


def _rows(connection: sa.Connection, studies: Collection[str] | None) -> list[sa.Row[tuple[int, str, str, int]]]:
    if studies is None or len(studies) > MOST_NAMED:
        return list(connection.execute(ALL_REVISIONS))
    return list(connection.execute(REVISIONS_OF, {"names": list(studies)}))


def _summed(connection: sa.Connection, study_ids: Collection[int]) -> dict[int, list[tuple[int | None, int]]]:
    if not study_ids:
        return {}
    of_all = len(study_ids) > MOST_NAMED
    query, named = (ALL_CHARGES, {}) if of_all else (CHARGES_OF, {"study_ids": list(study_ids)})
    found: dict[int, list[tuple[int | None, int]]] = {}
    for study_id, job_id, cost in connection.execute(query, named):
        found.setdefault(study_id, []).append((job_id, int(cost)))
    return found


_UNDER_WAY: tuple[JobState, ...] = ("queued", "running")
REMEMBERED_HALF_LIVES = 10  # number of half-lives after which a stay counts less than a thousandth and is not read


def load(
    connection: sa.Connection,
    *,
    project: str | None = None,
    states: Sequence[JobState] | None = None,
    study: str | None = None,
) -> list[Job]:
    """Return jobs, oldest first; None means all projects, states or studies."""
    query = JOBS
    if project is not None:
        query = query.where(t.jobs.c.project == project)
    if states is not None:
        query = query.where(t.jobs.c.state.in_(states))
    if study is not None:
        query = query.where(t.jobs.c.study == study)
    rows = connection.execute(query).all()
    is_filtered = not (project is None and states is None and study is None)
    charges = _charges(connection, {row.study.partition(CONFIRM_MARK)[0] for row in rows} if is_filtered else None)
    runs = _runs(connection, OPEN_RUNS)
    used_up = {row.job_id: row.cap_nano_usd for row in connection.execute(CAPS_THAT_ENDED_RUNS)}
    left = _runs(connection, LEFT_RUNS)
    return [_job(row, charges, runs.get(row.id), left.get(row.id), used_up.get(row.id)) for row in rows]


def load_for_turn(connection: sa.Connection) -> tuple[list[Job], list[Account]]:
    """Return unfinished jobs, oldest first, and all accounts."""
    if connection.execute(sa.select(t.spending_limits.c.id).limit(1)).first() is None:
        return load(connection, states=_UNDER_WAY), []
    jobs = load(connection)
    return [job for job in jobs if job.state in _UNDER_WAY], load_accounts(connection, jobs)


def names(connection: sa.Connection, project: str) -> frozenset[str]:
    """Return the names of a project's studies."""
    return frozenset(connection.execute(sa.select(t.jobs.c.study).where(t.jobs.c.project == project)).scalars())


def look(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    """Return a job's status quickly, without reading charges; None without a job.

    Columns: project, state, reason, request, priority and limit of the job, the id of its current run, and revision and
    state of its study (None before its start).
    """
    row: Any = connection.execute(LOOK, {"study": study}).first()
    return row  # type: ignore[no-any-return]


def load_with_confirmations(connection: sa.Connection, study: str) -> list[Job]:
    """Return a study's job and all its confirming jobs."""
    prefix = study + CONFIRM_MARK  # not LIKE, which ignores case in SQLite
    is_of_it = sa.func.substr(t.jobs.c.study, 1, len(prefix)) == prefix
    names = sa.select(t.jobs.c.study).where(t.jobs.c.kind == "confirm", is_of_it)
    found = [*load(connection, study=study)]
    for name in connection.execute(names).scalars().all():
        found += load(connection, study=name)
    return found


def load_accounts(connection: sa.Connection, jobs: Sequence[Job]) -> list[Account]:
    """Return an account for each spending limit."""
    limits = sa.select(t.spending_limits).order_by(t.spending_limits.c.kind, t.spending_limits.c.name)
    return [account(row.kind, row.name, row.nano_usd, jobs) for row in connection.execute(limits)]


def load_stays(connection: sa.Connection, now: float) -> list[Stay]:
    """Return the recent times during which users held slots; `now` is in seconds since 1970."""
    since = now - REMEMBERED_HALF_LIVES * HALF_LIFE_SECONDS
    r = t.job_runs.c
    query = sa.select(t.jobs.c.user, r.slot_numbers, r.started_at, r.ended_at).join(t.jobs, t.jobs.c.id == r.job_id)
    rows = connection.execute(query.where(sa.or_(r.ended_at.is_(None), r.ended_at >= since)))
    return [Stay(user=row.user, slots=len(row.slot_numbers), since=row.started_at, until=row.ended_at) for row in rows]


def load_workers(connection: sa.Connection) -> list[WorkerLine]:
    """Return the living workers, oldest first."""
    w = t.workers.c
    alive = (w.ended_at.is_(None), w.expires_at > clock_of(connection))
    runs = sa.select(t.job_runs.c.worker_id, t.job_runs.c.slot_numbers).where(t.job_runs.c.ended_at.is_(None))
    busy: Counter[int] = Counter()
    for row in connection.execute(runs):
        busy[row.worker_id] += len(row.slot_numbers)
    rows = connection.execute(sa.select(t.workers).where(*alive).order_by(w.id))
    return [of_row(WorkerLine, row, busy=busy[row.id]) for row in rows]


def load_rooms(connection: sa.Connection, besides: int, since: float) -> list[Room]:
    """Return slots of other living workers whose jobs were asked to stop, or ended after `since` (seconds since 1970).

    Slots freed earlier do not count: every worker has had a turn since.
    """
    w, r = t.workers.c, t.job_runs.c
    alive = (w.ended_at.is_(None), w.expires_at > clock_of(connection), w.id != besides)
    recent = sa.or_(r.ended_at.is_(None), r.ended_at >= since)
    runs = sa.select(r.worker_id, r.slot_numbers, r.ended_at, t.jobs.c.request).join(t.jobs, t.jobs.c.id == r.job_id)
    made, taken = set(), Counter[int]()
    for row in connection.execute(runs.where(recent)):
        if row.ended_at is None and row.request is None:
            taken[row.worker_id] += len(row.slot_numbers)
        else:
            made.add(row.worker_id)
    return [
        Room(slots=row.slots - taken[row.id], worker_slots=row.slots, device=row.device)
        for row in connection.execute(sa.select(t.workers).where(*alive).order_by(w.id))
        if row.id in made
    ]


def open_runs_of(connection: sa.Connection, worker_id: int) -> list[int]:
    """Return the ids of a worker's open runs."""
    mine = (t.job_runs.c.worker_id == worker_id, t.job_runs.c.ended_at.is_(None))
    return list(connection.execute(sa.select(t.job_runs.c.id).where(*mine)).scalars())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Charges:
    own: Counter[str] = field(default_factory=Counter)
    confirmed: Counter[str] = field(default_factory=Counter)
    by_job: Counter[int] = field(default_factory=Counter)


def _charges(connection: sa.Connection, studies: set[str] | None) -> _Charges:
    found = _Charges()
    for name, job_id, nano_usd in ledger_sums(connection, studies):
        if job_id is None:
            found.own[name] += nano_usd
        else:
            found.confirmed[name] += nano_usd
            found.by_job[job_id] += nano_usd
    return found


def left_studies(connection: sa.Connection) -> list[int]:
    """Return the ids of studies whose job has ended but whose pool is recorded as open."""
    return sorted({row.study_id for row in connection.execute(LEFT_RUNS)})


def _runs(connection: sa.Connection, query: sa.Select[Any]) -> dict[int, Run]:
    rows = connection.execute(query)
    return {row.job_id: of_row(Run, row, worker=row.name, slot_numbers=tuple(row.slot_numbers)) for row in rows}


def _job(row: Any, charges: _Charges, run: Run | None, left_run: Run | None, used_up_nano_usd: int | None) -> Job:
    is_confirm = row.kind == "confirm"
    charged = charges.by_job[row.id] if is_confirm else charges.own[row.study]
    return of_row(
        Job,
        row,
        least_slots=largest_gang(row.stored_gangs or row.submitted_gangs),
        device=row.device or "auto",
        cpus_per_rank=row.cpus_per_rank or 1,
        spent_nano_usd=max(int(row.spent_nano_usd), charged),
        confirmed_nano_usd=charges.confirmed[row.study],
        used_up_nano_usd=used_up_nano_usd,
        run=run,
        left_run=left_run,
    )


def check_may_go_on(connection: sa.Connection, job: Job) -> None:
    """Raise StoreError if a job has not ended or is deleted, or while another job confirms its study."""
    state = _state_of(connection, job)
    if state not in ENDED:
        raise StoreError(f"study: {job.study!r} is {state}. Only a job that ended, and was not deleted, can continue")
    for one in load_with_confirmations(connection, job.study.partition(CONFIRM_MARK)[0]):
        if one.state not in OVER:
            raise StoreError(f"study: {job.study!r} cannot continue while {one.study} is {one.state}. Wait for its end")


def _state_of(connection: sa.Connection, job: Job) -> JobState:
    """Return a job's state; "deleted" also if an earlier version deleted only the study."""
    there = sa.exists().where(t.studies.c.name == t.jobs.c.study)
    row = connection.execute(
        sa.select(t.jobs.c.state, t.jobs.c.spent_nano_usd, there.label("there")).where(t.jobs.c.id == job.id)
    ).one()
    state: JobState = row.state
    return "deleted" if row.spent_nano_usd > 0 and not row.there and state in ENDED else state
