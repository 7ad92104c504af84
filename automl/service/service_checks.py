"""Checks a service's store, folders and clocks, and gives advice (`automl doctor --service`).

The checks change nothing: they upgrade no schema, and create no folder.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from automl.doctor_checks import WrongError, finding
from automl.remote.client import ServiceClient
from automl.standalone.serving.listening import is_loopback
from automl.stored.open_store import store_url
from reports.phrases import duration, listed, plural, size_in_bytes
from search_spaces.messages import install_command
from search_spaces.untrusted_text import redact
from studies.control.files.wait_for_disk import storage_problem
from studies.queueing import access_tokens
from studies.queueing.access_tokens import TokenLine
from studies.queueing.accounts import allowance
from studies.queueing.job_queue import JobQueue
from studies.queueing.jobs import Job, WorkerLine, needed, no_worker_for
from studies.queueing.worker_heartbeats import SilentWorker, silent_workers
from studies.storage.leases.lease import difference_here, differences_of_controllers
from studies.storage.schema import tables as t
from studies.storage.schema.engine import absolute_url, exists, make_engine, parse_url, schemas
from studies.storage.study_store import Store
from studies.storage.views.cursors import VIEWS
from trainers.checkpoints.locations import is_url

PACKAGES = ("fastapi", "uvicorn", "prometheus-client", "pydantic-settings", "a2wsgi")
LEAST_FREE_BYTES = 10**9  # free bytes below which checkpoints of a few trials may fill the artifacts' disk
DEFAULT_ARTIFACTS = "artifacts"
_EXTRAS = (("optuna-dashboard", "Optuna Dashboard"), ("mlflow", "MLflow"), ("mcp", "tools for agents"))
SOON_SECONDS = 7 * 86_400.0  # remaining seconds below which a token must be rotated
MOST_CLOCK_SECONDS = 2.0  # largest tolerated clock difference in seconds. A loaded database may answer this late.
_MOST_NAMES = 5


def examine_service(
    store: str | None, *, client: ServiceClient | None = None, artifacts: str | None = None
) -> list[dict[str, Any]]:
    """Run all checks, in the form of `examine`. `artifacts` is a folder or URL; None takes the latest job's."""
    text = absolute_url(store_url(store), Path.cwd())
    is_named = bool(store or os.environ.get("AUTOML_STORE"))
    service = None if client is None else _Service(client)
    findings = [] if service is None else service.findings()
    if service is not None and not is_named and not exists(text):
        findings.append({"what": "store", "ok": True, "found": "not checked: --store names none", "cure": ""})
    else:
        findings += _of_store(text, None if service is None else service.ahead_seconds, artifacts)
    findings.append(finding("packages", _packages, install_command("serve")))
    findings.append(finding("extras", _extras))
    return findings


def _of_store(text: str, ahead_of_service: float | None, artifacts: str | None) -> list[dict[str, Any]]:
    first = finding("store", lambda: _store(text), "name the service's store with --store or AUTOML_STORE")
    if not first["ok"]:
        return [first]
    with closing(Store(text, engine=make_engine(text))) as store:
        checks: list[tuple[str, Callable[[], str], str]] = [
            ("tokens", lambda: tokens_found(store), ""),
            ("workers", lambda: workers_found(store), ""),
            ("queue", lambda: queue_found(store), ""),
            ("limits", lambda: limits_found(store), ""),
            ("artifacts", lambda: _artifacts(store, artifacts), "name another folder with --artifacts"),
            ("clocks", lambda: clocks_found(store, ahead_of_service), ""),
            ("views", lambda: views_found(store), ""),
        ]
        return [first, *(finding(*check) for check in checks)]


def _store(text: str) -> str:
    if not exists(text):
        raise WrongError(
            f"{redact(text)} has no automl tables",
            "run `automl serve`, which creates the tables, or name another store",
        )
    found, oldest, known = schemas(text)
    if found != known:
        raise WrongError(
            f"{redact(text)} has schema {found}, but this version of automl knows {oldest} to {known}",
            _cure(found, oldest, known),
        )
    url = parse_url(text)
    if url.get_backend_name() == "sqlite" and not os.access(str(url.database), os.W_OK):
        raise WrongError(f"{url.database} cannot be written", "run as the user of the service, or fix the file's mode")
    return f"{redact(text)}: schema {found}, which is current"


def _cure(found: str | None, oldest: str, known: str) -> str:
    if str(found) > known:
        return "update automl on this machine"
    if str(found) < oldest:
        return "name another store: this one is too old to be upgraded"
    return "end service and workers of the older version, back up the database, and upgrade it with `automl list`"


class _Service:
    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self.ahead_seconds: float | None = None

    def findings(self) -> list[dict[str, Any]]:
        lives = finding("service", self._lives, "start `automl serve`, or fix --server")
        if not lives["ok"]:
            return [lives]
        own = finding("own token", self._takes_token, "put a token into AUTOML_TOKEN or ~/.config/automl/token")
        return [lives, own]

    def _lives(self) -> str:
        begun = time.monotonic()
        there = self._asked("/health")
        seconds = time.monotonic() - begun
        if there is not None:
            self.ahead_seconds = time.time() - seconds / 2.0 - there - 0.5  # the header has whole seconds
        self._asked("/ready")
        return f"{self._client.url} is alive and ready, answered in {duration(seconds)}"

    def _asked(self, path: str) -> float | None:
        client = self._client
        try:
            answer, moment = client.beside_api(path)
        except ValueError:
            answer, moment = None, None
        if not isinstance(answer, dict) or answer.get("status") != "ok":
            raise WrongError(f"{client.url}{path} answers, but is not `automl serve`")
        return moment

    def _takes_token(self) -> str:
        client = self._client
        client.get("/queue")
        parts = urlsplit(client.url)
        if client.has_token and parts.scheme == "http" and not is_loopback(str(parts.hostname)):
            raise WrongError(f"accepted, but {client.url} has no TLS, so others in the network can read the token",
                             "put a proxy with HTTPS before the service")  # fmt: skip
        return "accepted" if client.has_token else "no token is set, and none is needed"


def _artifacts(store: Store, given: str | None) -> str:
    folder = given or _latest_folder(store) or DEFAULT_ARTIFACTS
    if is_url(folder):
        problem = storage_problem(folder)
        if problem:
            raise WrongError(problem)
        return f"{redact(folder)} can be written to"
    place = Path(folder).absolute()
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        raise WrongError(f"{there} is a file, but must be a folder")
    if problem := storage_problem(str(there)):
        raise WrongError(problem, "fix the folder's mode or free its disk, or name another folder with --artifacts")
    free = shutil.disk_usage(there).free
    told = f"{place} {'can be written' if there == place else 'does not exist yet, and can be created'}"
    if free < LEAST_FREE_BYTES:
        raise WrongError(
            f"{told}, {size_in_bytes(free)} free",
            "free space with `automl prune-checkpoints STUDY --yes` or `automl delete STUDY`",
        )
    return f"{told}, {size_in_bytes(free)} free"


def _latest_folder(store: Store) -> str | None:
    """Return the latest job's artifacts folder, above its project's folder, or None without a job."""
    query = sa.select(t.jobs.c.spec).where(t.jobs.c.kind != "confirm").order_by(t.jobs.c.id.desc()).limit(1)
    with store.snapshot() as connection:
        spec = connection.execute(query).scalar()
    checkpoints = spec.get("checkpoints") if isinstance(spec, dict) else None
    folder = checkpoints.get("folder") if isinstance(checkpoints, dict) else None
    return str(folder).rpartition("/")[0] or None if folder else None


def _packages() -> str:
    found = {name: _version(name) for name in PACKAGES}
    missing = [name for name, there in found.items() if there is None]
    if missing:
        raise WrongError(f"not installed: {', '.join(missing)}")
    return ", ".join(f"{name} {there}" for name, there in found.items())


def _extras() -> str:
    parts = []
    for package, purpose in _EXTRAS:
        there = _version(package)
        parts.append(f"{purpose} ({package} {there})" if there else f"no {purpose} ({package} is not installed)")
    return ", ".join(parts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def tokens_found(store: Store) -> str:
    """Report the access tokens. Raises WrongError if no admin has a token, or a token needs rotation."""
    lines, now = access_tokens.listed(store), JobQueue(store).now()
    if not lines:
        return "none, so the service listens on 127.0.0.1, and every user of its machine is an admin"
    valid = [line for line in lines if line.is_valid]
    expired = [line for line in lines if not line.is_valid and line.revoked_at is None]
    tokens = f"{plural(len(valid), 'valid token')} of {plural(len({line.user for line in valid}), 'user')}"
    tokens += f", {len(expired)} expired and still listed ({_ids(expired)})" if expired else ""
    make = "`automl token add NAME --user USER --project PROJECT --role admin`"
    if not valid:
        raise WrongError(f"nobody can use the service: there is no valid token ({tokens})", make)
    if not any(line.role == "admin" for line in valid):
        raise WrongError(f"{tokens}, but no admin has a token", make)
    ending = [line for line in valid if _ends_soon(line, valid, now)]
    if ending:
        told = [f"{line.id} ({line.name} of {line.user}) in {duration((line.expires_at or now) - now)}"
                for line in ending[:_MOST_NAMES]]  # fmt: skip
        more = f" and {len(ending) - _MOST_NAMES} more" if len(ending) > _MOST_NAMES else ""
        raise WrongError(f"{tokens}; these expire soon: {listed(told)}{more}", f"`automl token rotate {ending[0].id}`")
    return tokens


def _ends_soon(line: TokenLine, valid: Sequence[TokenLine], now: float) -> bool:
    """Return whether a token expires within a week, and no equal token lasts longer."""
    if line.expires_at is None or line.expires_at - now > SOON_SECONDS:
        return False
    same = [one for one in valid if (one.name, one.user, one.project, one.role)
            == (line.name, line.user, line.project, line.role)]  # fmt: skip
    return all(one.expires_at is not None and one.expires_at <= line.expires_at for one in same)


def _ids(lines: Sequence[TokenLine]) -> str:
    more = f" and {len(lines) - _MOST_NAMES} more" if len(lines) > _MOST_NAMES else ""
    return ", ".join(str(line.id) for line in lines[:_MOST_NAMES]) + more


def workers_found(store: Store) -> str:
    """Report the workers. Raises WrongError if a worker is silent, none runs, or machines share an SQLite file."""
    silent = silent_workers(store)
    lost = {(one.name, one.host, one.started_at) for one in silent}  # a dead worker's heartbeat may not have expired
    alive = [line for line in JobQueue(store).workers() if (line.name, line.host, line.started_at) not in lost]
    told = _alive(alive)
    if silent:
        named = listed([_silent(one) for one in silent[:_MOST_NAMES]])
        raise WrongError(f"{told}; {named}", _cure_of(silent[0]))
    if not alive:
        raise WrongError(told, "start `automl worker` where the store can be reached, or `automl serve --worker 0`")
    hosts = sorted({line.host for line in alive} - {socket.gethostname()})
    if hosts and store.engine.dialect.name == "sqlite":
        raise WrongError(
            f"{told}; the store is an SQLite file, which {listed(hosts)} cannot lock safely over a network",
            "run `automl store copy FROM postgresql://HOST/DATABASE`, and use the copy for service and workers",
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
    """Report the waiting jobs. Raises WrongError if no running worker can take a job."""
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
        return f"waits behind {plural(before, 'job')}, by priority and by the slots that their users have used"
    return "it is next, and waits for free slots"


def limits_found(store: Store) -> str:
    """Report the spending limits. Raises WrongError if jobs wait for money."""
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
            f"{told}; limits leave no money for {plural(len(waits), 'job')}; the first is {job.study}, which {reason}",
            "raise a limit with `automl limit set user|project NAME USD`, or let the job wait, or cancel it",
        )
    return told + shown


def clocks_found(store: Store, by_service: float | None) -> str:
    """Report clock differences to store and service. Raises WrongError above `MOST_CLOCK_SECONDS`."""
    here, uncertain = difference_here(store)
    off = {f"this machine and the database (within {duration(uncertain)})": here}
    if by_service is not None:
        off["this machine and the service (in whole seconds)"] = by_service
    off |= {f"{host}, which drives studies, and the database": one
            for host, one in differences_of_controllers(store).items()}  # fmt: skip
    told = "; ".join(f"{abs(seconds):.1f} s between {who}" for who, seconds in off.items())
    if any(abs(seconds) > MOST_CLOCK_SECONDS + uncertain for seconds in off.values()):
        raise WrongError(
            told, "set the clocks of all machines by NTP; until then, times and rates are wrong by this difference"
        )
    return told


def views_found(store: Store) -> str:
    """Report the studies copied to Optuna and MLflow. Raises WrongError if a copy failed."""
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
            f"{plural(len(failed), 'error')} in copying studies to Optuna or MLflow. Last error (study {last.name}, "
            f"{last.view}): {said}",
            f"fix the cause, then run `automl sync {last.name}`",
        )
    return f"the views of {mirrored:,} {'study' if mirrored == 1 else 'studies'} are written"
