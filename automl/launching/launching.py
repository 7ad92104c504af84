"""A prepared study, new or known to the store, driven to its end."""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from automl.launching.changed_code import changed_code
from automl.launching.driving import Outcome, Watcher, drive
from automl.launching.earlier_studies import with_earlier
from automl.launching.preparing import Prepared, prepare
from automl.launching.resuming import ignored_changes
from automl.stored.specs import from_store, stored_form
from studies.spec.differences import differences
from studies.spec.errors import SpecError
from studies.storage.engine import StoreError
from studies.storage.reader import load_study
from studies.storage.store import Store, StudyExistsError


def launch_prepared(prepared: Prepared, watcher: Watcher) -> tuple[Outcome, Store]:
    """Create the study, or find the one of this name, and drive it with the spec that it has in force.

    Raises:
        SpecError: The store cannot be opened, or holds a study of this name with another spec.
    """
    prepared = with_earlier(prepared)
    store = _store_of(prepared)
    row, is_new = _find_or_create(store, prepared)
    if not is_new:
        spec = from_store(row.spec, row.name).model_copy(update={"store": store.url})
        ignored = ignored_changes(row.name, prepared.spec, from_store(row.launched_spec, row.name), spec)
        if ignored:
            watcher.warn(ignored)
        prepared = prepare(spec, source=prepared.source, base_folder=Path(row.base_folder))
        if changed_files := changed_code(load_study(store, row.name), prepared.base_folder):
            watcher.warn(changed_files)
    return drive(store, row, prepared, watcher), store


def _store_of(prepared: Prepared) -> Store:
    try:
        return Store(prepared.spec.store)
    except StoreError as error:
        raise SpecError(prepared.source, (), str(error)) from None


def find_or_create(store: Store, prepared: Prepared) -> sa.Row[Any]:
    """Return the row of the study of this name: a new one, or one that was launched with an equal spec.

    Raises:
        SpecError: There is one with another spec; the message says where they differ.
    """
    return _find_or_create(store, prepared)[0]


def _find_or_create(store: Store, prepared: Prepared) -> tuple[sa.Row[Any], bool]:
    """Return the row, and whether this call made it."""
    name = prepared.spec.study
    row = store.study_row(name)
    if row is None:
        earlier = [one.to_plain() for one in prepared.earlier]
        with contextlib.suppress(StudyExistsError):  # another launch was quicker
            store.create_study(name, stored_form(prepared.spec), str(prepared.base_folder), time.time(), earlier)
            return store.require(name), True
        row = store.require(name)
    stored = from_store(row.launched_spec, name)
    lines = differences(stored, prepared.spec)
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        problem = (
            f"found {name!r}, which exists with another spec: {lines[0]}{more}; "
            "allowed: another name, or `automl resume` to go on with the stored one"
        )
        raise SpecError(prepared.source, ("study",), problem)
    if stored.budget != prepared.spec.budget:
        problem = (
            f"found {name!r}, which exists with another budget; allowed: "
            f"`automl resume {shlex.quote(name)} --set budget...` changes it"
        )
        raise SpecError(prepared.source, ("study",), problem)
    return row, False
