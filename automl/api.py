"""The face towards Python: launch a study, or look at one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.launching.preparing import Prepared, parse, prepare, read_spec
from automl.launching.resuming import check_budget, ignored_changes
from automl.launching.running import Outcome, Watcher, check_launched, drive, find_or_create, from_store
from studies import analysis
from studies.records import StudyRecord, TrialRecord
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec, apply_resume_overrides
from studies.storage.engine import StoreError, absolute_url, exists
from studies.storage.reader import load_study
from studies.storage.store import Store

if TYPE_CHECKING:
    from torch import nn

DEFAULT_STORE = "sqlite:///automl.db"


class Study:
    """A study of a store, as committed when it was last read.

    Args:
        store: Where it is.
        name: Its name.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.record: StudyRecord = load_study(store, name)

    def refresh(self) -> Study:
        """Read it again."""
        self.record = load_study(self._store, self._name)
        return self

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """All started trials, by number."""
        return self.record.started

    @property
    def front(self) -> list[analysis.FrontPoint]:
        """The non-dominated complete trials."""
        return analysis.front(self.record)

    @property
    def archive(self) -> list[analysis.ArchivePoint]:
        """The non-dominated milestones of all trials: each is a model to take."""
        return analysis.archive(self.record)

    def checkpoint(self, trial: int, epoch: int | None = None) -> str:
        """The kept file of a trial's milestone, of its last kept one without an epoch.

        Raises:
            StoreError: There is no such file; the message says which there are.
        """
        return kept_checkpoint(self.record, trial, epoch)

    def load_model(self, trial: int, epoch: int | None = None) -> nn.Module:
        """The trained model of an archive point, in evaluation mode.

        Raises:
            StoreError: No checkpoint of it is kept.
        """
        from trainers.checkpoint import load_model

        return load_model(self.checkpoint(trial, epoch))


def launch(spec: str | Path | StudySpec | Mapping[str, Any], overrides: Sequence[str] = ()) -> Study:
    """Run a study to its end, or go on with one of an equal spec.

    Args:
        spec: A YAML file, a mapping of the same form, or a parsed spec.
        overrides: `path=value` each, as `--set`.

    Raises:
        SpecError: The spec is wrong, or the study exists with another one.
        StoreError: The store cannot be opened.
    """
    if isinstance(spec, str | Path):
        parsed, source, folder = read_spec(spec, overrides), str(spec), Path(spec).absolute().parent
    else:
        parsed, source, folder = parse(spec), "spec", Path.cwd()
    outcome, store = launch_prepared(prepare(parsed, source=source, base_folder=folder), Watcher())
    return Study(store, outcome.record.name)


def launch_prepared(prepared: Prepared, watcher: Watcher) -> tuple[Outcome, Store]:
    """Create or find the study, and drive it with the spec that it has in force."""
    if prepared.spec.search.from_studies:
        from automl.launching.earlier_studies import with_earlier

        prepared = with_earlier(prepared)
    store = _store_of(prepared)
    new = store.study_row(prepared.spec.study) is None
    row = find_or_create(store, prepared)
    if not new:
        spec = from_store(row.spec, row.name).model_copy(update={"store": store.url})
        ignored = ignored_changes(row.name, prepared.spec, from_store(row.launched_spec, row.name), spec)
        if ignored:
            watcher.warn(ignored)
        prepared = prepare(spec, source=prepared.source, base_folder=Path(row.base_folder))
    return drive(store, row, prepared, watcher), store


def _store_of(prepared: Prepared) -> Store:
    try:
        return Store(prepared.spec.store)
    except StoreError as error:
        raise SpecError(prepared.source, (), str(error)) from None


def resume(store: Store, name: str, overrides: Sequence[str], watcher: Watcher) -> Outcome:
    """Go on with a study, with another budget, other resources or other checkpoints if wanted.

    Raises:
        SpecError: An override is wrong, or sets a limit below what is used up.
        StoreError: There is no such study.
    """
    row = store.require(name)
    spec = from_store(row.spec, name)
    changed = apply_resume_overrides(spec, overrides)
    check_budget(load_study(store, name), changed, overrides)
    prepared = prepare(changed.model_copy(update={"store": store.url}), source=name, base_folder=Path(row.base_folder))
    if overrides:
        from automl.launching.running import stored_form

        store.change_spec(row.id, stored_form(prepared.spec))
    return drive(store, store.require(name), prepared, watcher)


def load(name: str, store: str | None = None) -> Study:
    """Look at a study.

    Args:
        name: Its name.
        store: The database's URL; AUTOML_STORE, then sqlite:///automl.db by default.

    Raises:
        StoreError: There is no such store or study.
    """
    return Study(open_store(store), name)


def open_store(url: str | None) -> Store:
    """An existing store, for reading; nothing is created.

    Raises:
        StoreError: There is none behind the URL.
    """
    text = absolute_url(url or os.environ.get("AUTOML_STORE") or DEFAULT_STORE, Path.cwd())
    if not exists(text):
        from studies.redact import redact

        raise StoreError(
            f"store: {redact(text)}: holds no studies; allowed: --store or AUTOML_STORE names one that does"
        )
    return Store(text)


def kept_checkpoint(record: StudyRecord, trial: int, epoch: int | None) -> str:
    """The kept file of a trial's milestone.

    Raises:
        StoreError: There is none; the message says which there are. Or the study was simulated.
    """
    check_launched(record.spec, record.name)
    found = next((t for t in record.started if t.number == trial), None)
    if found is None:
        raise StoreError(f"trial: found {trial}, allowed: 0 to {len(record.started) - 1}")
    kept = {e.epoch: e.checkpoint for e in found.epochs if e.checkpoint is not None}
    wanted = epoch if epoch is not None else max(kept, default=None)
    if wanted not in kept:
        shown = f"{trial}@{epoch}" if epoch is not None else str(trial)
        own = ", ".join(f"{trial}@{e}" for e in kept)
        archive = ", ".join(f"{p.trial}@{p.epoch}" for p in analysis.archive(record)[:12] if p.checkpoint)
        allowed = f"{own} of this trial" if own else f"a model of the archive ({archive})" if archive else "none yet"
        raise StoreError(f"trial: found {shown}, of which no model is kept; allowed: {allowed}")
    return str(kept[wanted])
