"""Opens a store, and finds studies and trials in it; creates nothing."""

import os
from contextlib import closing
from pathlib import Path

import click
import sqlalchemy as sa

from search_spaces.user_errors import UserError
from studies.records.records import StudyRecord, TrialRecord
from studies.redact import redact
from studies.storage.schema.damaged_rows import damage
from studies.storage.schema.engine import StoreError, absolute_url, exists, is_current, parse_url
from studies.storage.study_store import Store

DEFAULT_STORE = "sqlite:///automl.db"
STORES = "automl.stores"  # key of the opened stores in a command's context


def store_url(given: str | None) -> str:
    """Return the URL of the store: the given URL, or the environment's AUTOML_STORE, or `DEFAULT_STORE`."""
    return given or os.environ.get("AUTOML_STORE") or DEFAULT_STORE


def open_store(given: str | None) -> Store:
    """Open an existing store (None: AUTOML_STORE or `DEFAULT_STORE`). StoreError if there is none at the URL."""
    text = absolute_url(store_url(given), Path.cwd())
    if not exists(text):
        raise StoreError(f"No studies in {redact(text)}. Pass --store URL or set AUTOML_STORE")
    store = Store(text)
    context = click.get_current_context(silent=True)
    if context is not None:  # so that damage in the store can explain the command's errors
        context.meta[STORES] = [*context.meta.get(STORES, ()), store]
    return store


def damage_in_stores(context: click.Context) -> str:
    """Return a description of damage in the stores that a command has opened, or ""."""
    for store in context.meta.get(STORES, ()):
        if found := damage(store):
            return f"the store {redact(store.url)} is damaged: {found}"
    return ""


def started_trial(record: StudyRecord, number: int) -> TrialRecord:
    """Return the started trial with this number. StoreError if there is none."""
    for trial in record.started:
        if trial.number == number:
            return trial
    last = len(record.started) - 1
    allowed = f"0 to {last}" if last >= 0 else f"none, since no trial of {record.name} has started yet"
    raise StoreError(f"trial: found {number}, allowed: {allowed}")


def names_of(given: str | None) -> list[str]:
    """Return the names of a store's studies, newest first; none if the store cannot be read without migration."""
    try:
        text = absolute_url(store_url(given), Path.cwd())
        url = parse_url(text)
        is_missing = url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists()
        if is_missing or not is_current(text):
            return []
        with closing(Store(text)) as store:
            return list(reversed(store.study_names()))
    except (UserError, OSError, ModuleNotFoundError, sa.exc.SQLAlchemyError):
        return []
