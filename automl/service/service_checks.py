"""Checks of a service's surroundings, with advice (`automl doctor --service`).

Read-only: a store of another schema is not upgraded, and no folder is created.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from automl.doctor_findings import WrongError, finding
from automl.remote.client import ServiceClient
from automl.service import queue_checks
from automl.standalone.serving.listening import is_loopback
from automl.stored.open_store import store_url
from reports.phrases import duration, size_in_bytes
from search_spaces.wording import install_command
from studies.control.files.wait_for_disk import storage_problem
from studies.redact import redact
from studies.storage.schema import tables as t
from studies.storage.schema.engine import absolute_url, exists, make_engine, parse_url, schemas
from studies.storage.study_store import Store
from trainers.checkpoints.locations import is_url

PACKAGES = ("fastapi", "uvicorn", "prometheus-client", "pydantic-settings", "a2wsgi")
LEAST_FREE_BYTES = 10**9  # free bytes of the artifacts' disk below which checkpoints of a few trials may fill it
DEFAULT_ARTIFACTS = "artifacts"
_EXTRAS = (("optuna-dashboard", "Optuna Dashboard"), ("mlflow", "MLflow"), ("mcp", "tools for agents"))


def examine_service(
    store: str | None, *, client: ServiceClient | None = None, artifacts: str | None = None
) -> list[dict[str, Any]]:
    """Return the findings, in the form of `examine`. `artifacts` is a folder or URL, or None for the latest job's."""
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
    first = finding("store", lambda: _store(text), "--store or AUTOML_STORE names the store of the service")
    if not first["ok"]:
        return [first]
    with closing(Store(text, engine=make_engine(text))) as store:
        checks: list[tuple[str, Callable[[], str], str]] = [
            ("tokens", lambda: queue_checks.tokens_found(store), ""),
            ("workers", lambda: queue_checks.workers_found(store), ""),
            ("queue", lambda: queue_checks.queue_found(store), ""),
            ("limits", lambda: queue_checks.limits_found(store), ""),
            ("artifacts", lambda: _artifacts(store, artifacts), "--artifacts names another folder"),
            ("clocks", lambda: queue_checks.clocks_found(store, ahead_of_service), ""),
            ("views", lambda: queue_checks.views_found(store), ""),
        ]
        return [first, *(finding(*check) for check in checks)]


def _store(text: str) -> str:
    if not exists(text):
        raise WrongError(
            f"{redact(text)}: has no automl tables",
            "run `automl serve`, which creates the tables, or name another store",
        )
    found, oldest, known = schemas(text)
    if found != known:
        raise WrongError(
            f"{redact(text)}: schema {found}, this version knows {oldest} to {known}", _cure(found, oldest, known)
        )
    url = parse_url(text)
    if url.get_backend_name() == "sqlite" and not os.access(str(url.database), os.W_OK):
        raise WrongError(f"{url.database}: cannot be written", "run as the user of the service, or fix its mode")
    return f"{redact(text)}: schema {found}, which is current"


def _cure(found: str | None, oldest: str, known: str) -> str:
    if str(found) > known:
        return "update automl on this machine"
    if str(found) < oldest:
        return "name another store: this one is too old to be upgraded"
    return "end service and workers of the older version, copy the database, and run `automl list`, which upgrades it"


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
        return f"{self._client.url} lives and is ready, answered in {duration(seconds)}"

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
            raise WrongError(f"accepted, but {client.url} has no TLS: others can read the token on the way",
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
    """Return the artifacts' folder of the latest job, above its project's folder, or None without a job."""
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
