"""Checks of `automl doctor --service` in the store: tokens, workers, queue, limits, clocks and views."""

import socket
from collections.abc import Sequence

import sqlalchemy as sa

from automl.doctor_findings import WrongError
from reports.phrases import duration, listed, plural
from studies.queueing import access_tokens
from studies.queueing.access_tokens import TokenLine
from studies.queueing.accounts import allowance
from studies.queueing.job_needs import needed, no_worker_for
from studies.queueing.job_queue import JobQueue
from studies.queueing.jobs import Job, WorkerLine
from studies.queueing.worker_heartbeats import SilentWorker, silent_workers
from studies.storage.leases.heartbeat import difference_here, differences_of_controllers
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.views.cursors import VIEWS

SOON_SECONDS = 7 * 86_400.0  # remaining seconds below which a token should be rotated
MOST_CLOCK_SECONDS = 2.0  # largest tolerated clock difference in seconds. A loaded database may answer this late.
_MOST_NAMES = 5


def tokens_found(store: Store) -> str:
    """Report the tokens. WrongError if no admin has access, or a token expires soon without a successor."""
    lines, now = access_tokens.listed(store), JobQueue(store).now()
    if not lines:
        return "none, so the service listens on 127.0.0.1, and every user of its machine is an admin"
    valid = [line for line in lines if line.is_valid]
    expired = [line for line in lines if not line.is_valid and line.revoked_at is None]
    counted = f"{plural(len(valid), 'valid token')} of {plural(len({line.user for line in valid}), 'user')}"
    listed_yet = f", {len(expired)} expired and still listed ({_ids(expired)})" if expired else ""
    make = "`automl token add NAME --user USER --project PROJECT --role admin`"
    if not valid:
        raise WrongError(f"{counted}{listed_yet}: nobody can use the service", make)
    if not any(line.role == "admin" for line in valid):
        raise WrongError(f"{counted}{listed_yet}, but no admin has one", make)
    ending = [line for line in valid if _ends_soon(line, valid, now)]
    if ending:
        told = [f"{line.id} ({line.name} of {line.user}) in {duration((line.expires_at or now) - now)}"
                for line in ending[:_MOST_NAMES]]  # fmt: skip
        more = f" and {len(ending) - _MOST_NAMES} more" if len(ending) > _MOST_NAMES else ""
        raise WrongError(
            f"{counted}{listed_yet}; expiring soon: {listed(told)}{more}", f"`automl token rotate {ending[0].id}`"
        )
    return counted + listed_yet


def _ends_soon(line: TokenLine, valid: Sequence[TokenLine], now: float) -> bool:
    """Return whether a token expires within a week and no rotated successor lasts longer."""
    if line.expires_at is None or line.expires_at - now > SOON_SECONDS:
        return False
    same = [one for one in valid if (one.name, one.user, one.project, one.role)
            == (line.name, line.user, line.project, line.role)]  # fmt: skip
    return all(one.expires_at is not None and one.expires_at <= line.expires_at for one in same)


def _ids(lines: Sequence[TokenLine]) -> str:
    more = f" and {len(lines) - _MOST_NAMES} more" if len(lines) > _MOST_NAMES else ""
    return ", ".join(str(line.id) for line in lines[:_MOST_NAMES]) + more


def workers_found(store: Store) -> str:
    """Report the living workers. WrongError if one is silent, none lives, or several machines share an SQLite file."""
    silent = silent_workers(store)
    lost = {(one.name, one.host, one.started_at) for one in silent}  # a dead worker's heartbeat may not have expired
    alive = [line for line in JobQueue(store).workers() if (line.name, line.host, line.started_at) not in lost]
    told = _alive(alive)
    if silent:
        named = listed([_silent(one) for one in silent[:_MOST_NAMES]])
        raise WrongError(f"{told}; {named}", _cure_of(silent[0]))
    if not alive:
        raise WrongError(told, "start `automl worker` beside the store, or `automl serve --worker 0`")
    hosts = sorted({line.host for line in alive} - {socket.gethostname()})
    if hosts and store.engine.dialect.name == "sqlite":
        raise WrongError(
            f"{told}; the store is an SQLite file, which {listed(hosts)} cannot lock safely over a network",
            "`automl store copy FROM postgresql://HOST/DATABASE`, and use the copy for service and workers",
        )
    return told


def _alive(workers: Sequence[WorkerLine]) -> str:
    if not workers:
        return "none is alive"
    slots, busy = sum(line.slots for line in workers), sum(line.busy for line in workers)
    names = [f"{line.name} on {line.host} ({line.device})" for line in workers[:_MOST_NAMES]]
    more = f" and {len(workers) - _MOST_NAMES} more" if len(workers) > _MOST_NAMES else ""
    return f"{len(workers)} alive with {plural(slots, 'slot')}, {busy} in use: {', '.join(names)}{more}"


def _silent(one: SilentWorker) -> str:
    what = {"frozen": "is stopped (its process, by a signal)", "gone": "has died",
            "silent": f"has not answered for {duration(one.silent_seconds)}"}[one.fate]  # fmt: skip
    held = f", and holds {listed(list(one.studies[:_MOST_NAMES]))}" if one.studies else ""
    return f"{one.name} on {one.host} (process {one.pid}) {what}{held}"


def _cure_of(one: SilentWorker) -> str:
    if one.fate == "frozen":
        return f"on {one.host}: `kill -CONT {one.pid}`; it will release its jobs and join again"
    start = "start `automl worker`: any worker takes over the jobs of a dead worker"
    return start if one.fate == "gone" else f"check {one.host} and its connection to the database; {start}"


def queue_found(store: Store) -> str:
    """Report the waiting jobs, and why the oldest waits. WrongError if no living worker can take a job."""
    queue = JobQueue(store)
    workers, waiting, now = queue.workers(), queue.waiting(), queue.now()
    running = len(queue.jobs(states=("running",)))
    if not waiting:
        return f"no job waits, {plural(running, 'job')} running"
    oldest = min(waiting, key=lambda job: (job.queued_at, job.id))
    reason = _why_it_waits(queue, oldest, waiting, workers)
    told = (f"{plural(len(waiting), 'job')} waiting, {running} running; the oldest, {oldest.study}, for "
            f"{duration(max(now - oldest.queued_at, 0.0))}: {reason}")  # fmt: skip
    stuck = [(job, problem) for job in waiting if (problem := no_worker_for(job, workers))]
    if not stuck:
        return told
    names = listed([f"{job.study} ({problem})" for job, problem in stuck[:_MOST_NAMES]])
    more = f" and {len(stuck) - _MOST_NAMES} more" if len(stuck) > _MOST_NAMES else ""
    raise WrongError(f"{told}; no living worker can take {names}{more}", _worker_for(stuck[0][0]))


def _worker_for(job: Job) -> str:
    count = needed(job, "cpu")
    slots = f" --slots {count}" if count > 1 or job.slots is not None else ""
    return f"run `automl worker{slots}` on a machine that can, or `automl cancel {job.study}` at the service"


def _why_it_waits(queue: JobQueue, job: Job, waiting: Sequence[Job], workers: Sequence[WorkerLine]) -> str:
    problem = allowance(job, queue.accounts()).problem or no_worker_for(job, workers)
    if problem:
        return problem
    before = [one.id for one in waiting].index(job.id)
    if before:
        return f"{plural(before, 'job')} before it, by priority and by the slots that their users have had"
    return "it is next, and waits for free slots"


def limits_found(store: Store) -> str:
    """Report the limits, and which are exhausted. WrongError if jobs wait for money."""
    queue = JobQueue(store)
    accounts = queue.accounts()
    if not accounts:
        return "none is set"
    used_up = [one for one in accounts if one.rest_nano_usd == 0]
    told = f"{plural(len(accounts), 'limit')}, {len(used_up)} used up or promised to running jobs"
    shown = f": {'; '.join(str(one) for one in used_up[:_MOST_NAMES])}" if used_up else ""
    waits = [(job, reason) for job in queue.waiting() if (reason := allowance(job, accounts).problem)]
    if waits:
        job, reason = waits[0]
        raise WrongError(
            f"{told}; {plural(len(waits), 'job')} without money, first {job.study}, which {reason}",
            "raise a limit with `automl limit set user|project NAME USD`, or let the job wait, or cancel it",
        )
    return told + shown


def clocks_found(store: Store, by_service: float | None) -> str:
    """Report clock differences to the store and the service (seconds). WrongError above `MOST_CLOCK_SECONDS`."""
    here, uncertain = difference_here(store)
    off = {f"this machine and the database (within {duration(uncertain)})": here}
    if by_service is not None:
        off["this machine and the service (in whole seconds)"] = by_service
    off |= {f"{host}, which drives studies, and the database": one
            for host, one in differences_of_controllers(store).items()}  # fmt: skip
    told = "; ".join(f"{abs(seconds):.1f} s between {who}" for who, seconds in off.items())
    if any(abs(seconds) > MOST_CLOCK_SECONDS + uncertain for seconds in off.values()):
        raise WrongError(
            told, "let NTP set the clocks of all machines; leases are safe, but times and rates are off by as much"
        )
    return told


def views_found(store: Store) -> str:
    """Report the number of mirrored studies. WrongError if a view could not be written."""
    c = t.view_cursors.c
    query = sa.select(t.studies.c.name, c.view, c.error).join(t.studies, t.studies.c.id == c.study_id)
    query = query.where(c.view.in_(VIEWS))
    with store.snapshot() as connection:
        failed = connection.execute(query.where(c.error.is_not(None)).order_by(c.id.desc())).all()
        mirrored = connection.execute(sa.select(sa.func.count(sa.distinct(c.study_id)))).scalar_one()
    if failed:
        last = failed[0]
        said = " ".join(str(last.error).split())[:200]
        raise WrongError(
            f"{plural(len(failed), 'view')} behind, the latest of {last.name} in {last.view}: {said}",
            f"`automl sync {last.name}` once the cause is gone",
        )
    return f"the views of {mirrored:,} {'study' if mirrored == 1 else 'studies'} are written"
