"""Opens an existing store, and finds specs, trials and checkpoints in it."""

import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa

from search_spaces.messages import UserError
from search_spaces.untrusted_text import redact
from studies.records.records import NOT_TRAINED_HERE, StudyRecord, TrialRecord
from studies.results import analysis
from studies.spec.study_spec import StudySpec, parse_spec, spec_to_mapping
from studies.storage.schema.damaged_rows import damage
from studies.storage.schema.engine import StoreError, absolute_url, exists, is_current, parse_url
from studies.storage.study_store import Store

DEFAULT_STORE = "sqlite:///automl.db"
STORES = "automl.stores"  # key of the opened stores in a command's context


def store_url(given: str | None) -> str:
    """Return the given URL, else AUTOML_STORE, else `DEFAULT_STORE`."""
    return given or os.environ.get("AUTOML_STORE") or DEFAULT_STORE


def open_store(given: str | None) -> Store:
    """Open the existing store at `store_url(given)`. Raises StoreError if there is none."""
    text = absolute_url(store_url(given), Path.cwd())
    if not exists(text):
        raise StoreError(f"No studies in {redact(text)}. Pass --store URL or set AUTOML_STORE")
    store = Store(text)
    context = click.get_current_context(silent=True)
    if context is not None:  # so that damage in the store can explain the command's errors
        context.meta[STORES] = [*context.meta.get(STORES, ()), store]
    return store


def open_or_create(given: str | None) -> Store:
    """Open the store at `store_url(given)`, or create it."""
    return Store(absolute_url(store_url(given), Path.cwd()))


def damage_in_stores(context: click.Context) -> str:
    """Describe damage in the stores that a command has opened, else return ""."""
    for store in context.meta.get(STORES, ()):
        if found := damage(store):
            return f"the store {redact(store.url)} is damaged: {found}"
    return ""


def started_trial(record: StudyRecord, number: int) -> TrialRecord:
    """Return the started trial with this number. Raises StoreError if there is none."""
    for trial in record.started:
        if trial.number == number:
            return trial
    last = len(record.started) - 1
    allowed = f"0 to {last}" if last >= 0 else f"none, since no trial of {record.name} has started yet"
    raise StoreError(f"trial: found {number}, allowed: {allowed}")


def names_of(given: str | None) -> list[str]:
    """Return the names of studies, newest first; empty if the store cannot be read without migration."""
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


def stored_form(spec: StudySpec) -> dict[str, Any]:
    """Return a spec as it is stored: without passwords and the store's own URL, which may change."""
    mapping = spec_to_mapping(spec)
    mapping.pop("store", None)
    mapping["search"]["from_studies"] = [redact(name) for name in spec.search.from_studies]
    return mapping


def from_store(form: Mapping[str, Any], name: str) -> StudySpec:
    """Return a stored spec. Raises StoreError if the study was not trained here."""
    check_launched(form, name)
    return parse_spec(form, name)


def check_launched(form: Mapping[str, Any], name: str) -> None:
    """Raise StoreError if a study was simulated or imported, so that it has no models and cannot run."""
    if how := NOT_TRAINED_HERE.get(form.get("task")):
        learn = f"`automl launch SPEC --from-study {shlex.quote(name)}`"
        raise StoreError(f"{name!r} {how}, so it cannot run. Name a study that was launched, or learn from it: {learn}")


def kept_checkpoint(record: StudyRecord, trial: int, epoch: int | None) -> str:
    """Return the path or URL of a trial's model; None takes the last saved epoch. Raises StoreError if unsaved."""
    check_launched(record.spec, record.name)
    epochs = started_trial(record, trial).epochs
    kept = {e.epoch: e.checkpoint for e in epochs if e.checkpoint is not None}
    wanted = epoch if epoch is not None else max(kept, default=None)
    if wanted not in kept:
        shown = f"{trial}@{epoch}" if epoch is not None else str(trial)
        own = ", ".join(f"{trial}@{e}" for e in kept)
        archive = ", ".join(f"{p.trial}@{p.epoch}" for p in analysis.archive(record)[:12] if p.checkpoint)
        cure = f"name one of {own or archive}" if own or archive else "no trial has a saved model yet"
        raise StoreError(f"trial: {shown} has no saved model; {cure}")
    return str(kept[wanted])


def parse_point(text: str, names: Iterable[str] = ()) -> tuple[int, int | None]:
    """Read trial and epoch from `12@9`, or a trial from `12`. Raises StoreError for other texts."""
    trial, sign, epoch = text.partition("@")
    if not trial.isascii() or not trial.isdigit() or (sign and not (epoch.isascii() and epoch.isdigit())):
        also = "".join(f", {name}" for name in names)
        raise StoreError(f"trial: found {text!r}, allowed: TRIAL or TRIAL@EPOCH, such as 12@9{also}")
    return int(trial), int(epoch) if sign else None
