"""Connects to MLflow without its messages and telemetry, and creates experiments."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from search_spaces.messages import found
from search_spaces.untrusted_text import redact
from studies.storage.schema.engine import connect_args, parse_url
from studies.storage.views.view_rows import ViewError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout may be one JSON document
    # The views retry by themselves; MLflow's own seven retries would delay a pass by minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https")
UI_URL = "http://127.0.0.1:5000"
_LONGEST_ERROR = 300
ALLOWED = "sqlite:///FILE, http://HOST:PORT, https://HOST, postgresql://HOST/DATABASE, off"


def tracking_uri(mlflow: str, base_folder: str, store_url: str | None = None) -> str:
    """Return the tracking URI, with a relative SQLite file in `base_folder`. Raises ViewError if MLflow cannot use it.

    It must not be the store's database: MLflow and Optuna each need a table named `alembic_version`.
    """
    uri, file = mlflow, sqlite_file(mlflow)
    if file is not None:
        uri = f"sqlite:///{(Path(base_folder) / file).absolute()}"
    if store_url is not None and _place(uri) == _place(parse_url(store_url).render_as_string(hide_password=False)):
        raise ViewError(f"mlflow: {redact(mlflow)} is the store's own database. Name another database, or off")
    return uri


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite URI; None for other URIs. Raises `ViewError` if MLflow cannot write to the URI."""
    url = _url(uri)
    scheme = url.get_backend_name()
    if scheme not in SCHEMES or (scheme == "sqlite" and url.database in {None, "", ":memory:"}):
        raise ViewError(f"mlflow: {found(uri, ALLOWED)}")
    return Path(str(url.database)) if scheme == "sqlite" else None


def open_client(uri: str) -> MlflowClient:
    """Return a client for the tracking URI; creates a missing SQLite file. Raises `ViewError` if it cannot."""
    import_quietly()
    from mlflow.tracking import MlflowClient

    if not uri.startswith("sqlite:"):
        return MlflowClient(uri)
    path = Path(str(_url(uri).database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ViewError(f"mlflow: the folder {path.parent} cannot be created ({error.strerror})") from None
    # If two processes create the same database at once, their migrations fail.
    with _alone_in(path.parent):
        if not path.exists():
            engine = sa.create_engine(f"sqlite:///{path}")
            with engine.connect() as connection:  # the file keeps the setting: pages are read while the view writes
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            engine.dispose()
        return MlflowClient(uri)


def check_database(uri: str) -> None:
    """Raise `ViewError` for a database that does not answer or belongs to another program; servers are not checked.

    MLflow would retry for minutes, and would add its tables to the other program's database.
    """
    url = _url(uri)
    is_file = url.get_backend_name() == "sqlite"
    if url.get_backend_name() in {"http", "https"} or (is_file and not Path(str(url.database)).exists()):
        return
    try:
        engine = sa.create_engine(url, connect_args=connect_args(url))
        try:
            tables = set(sa.inspect(engine).get_table_names())
        finally:
            engine.dispose()
    except Exception as error:  # noqa: BLE001 - drivers raise any type; the user gets one line
        raise ViewError(f"found {redact(uri)!r}, which does not answer: {in_one_line(error)}") from None
    if "experiments" not in tables and any(not name.startswith("alembic_") for name in tables):
        raise ViewError(f"found {redact(uri)!r}, which is another program's database. Give MLflow its own database")


def in_one_line(error: BaseException) -> str:
    """Return an error of MLflow or a database in one line, without SQL and credentials."""
    cause: BaseException | None = error
    told: BaseException | None = None
    while cause is not None and told is None:
        told = getattr(cause, "orig", None)  # the driver's error inside SQLAlchemy's
        cause = cause.__cause__ or cause.__context__
    told = told or error
    said = " ".join(str(told).split()) or type(told).__name__
    return redact(said if len(said) <= _LONGEST_ERROR else f"{said[:_LONGEST_ERROR]}...")


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """Return the id of the experiment with this name; creates or restores it if necessary."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifact_location(uri)))
        except MlflowException:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def runs_url(uri: str, experiment: str) -> str:
    """Return the address of an experiment's runs; for a database, as `mlflow ui` would serve it."""
    url = _url(uri)
    is_server = url.get_backend_name() in {"http", "https"}
    without_user = sa.URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    place = str(without_user).rstrip("/") if is_server else UI_URL
    return f"{place}/#/experiments/{experiment}/runs"


def _artifact_location(uri: str) -> str | None:
    if not uri.startswith("sqlite:"):
        return None
    return (Path(str(_url(uri).database)).parent / "mlartifacts").as_uri()


def _url(text: str) -> sa.URL:
    try:
        return sa.make_url(text)
    except ArgumentError:
        raise ViewError(f"mlflow: {found(text, ALLOWED)}") from None


def _place(text: str) -> tuple[Any, ...] | None:
    """Return a key that is equal for all URLs of a database; None for a server."""
    url = _url(text)
    backend = url.get_backend_name()
    if backend == "sqlite":
        return backend, os.path.realpath(str(url.database))
    if backend != "postgresql":
        return None
    host = url.host or url.query.get("host") or "localhost"
    return backend, host, url.port or 5432, url.database


def import_quietly() -> None:
    """Import MLflow without its messages; sets the environment variables that it reads."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store"):
            importlib.import_module(name)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder during the block, without creating a file."""
    try:
        import fcntl
    except ImportError:  # this system has no such locks
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main() -> None:
    """Create the experiment that standard input names; print an error in one line."""
    question = json.load(sys.stdin)
    try:
        check_database(question["uri"])
        experiment_id(open_client(question["uri"]), question["uri"], question["study"])
    except Exception as error:  # noqa: BLE001 - MLflow and drivers raise any type; the user gets one line
        sys.stdout.write(in_one_line(error))


if __name__ == "__main__":
    main()
