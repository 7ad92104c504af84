"""Launches or resumes a study, and runs it to its end."""

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import sqlalchemy as sa

from automl.launching.earlier_studies import with_earlier
from automl.launching.expected_cost import warm_up_seconds
from automl.launching.functions import FOLDER
from automl.launching.prepared_study import Prepared, prepare
from automl.launching.quickstart import budget_note
from automl.launching.study_run import Outcome, Watcher, drive
from automl.signals import private_files
from automl.stored.open_store import from_store, stored_form
from reports.phrases import duration, exact_usd
from search_spaces.messages import listed, shown
from studies.control.files.orphans import check_in_place
from studies.records.records import NANO, StudyRecord, resume_command
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import (
    CHANGEABLE,
    NOT_COMPARED,
    StudySpec,
    apply_resume_overrides,
    differences,
    differing_keys,
    split_override,
)
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study, mentioned_checkpoints
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store, StudyExistsError
from trainers.contract.task_loading import options_of_new_studies
from trainers.contract.user_code import hash_of, hash_of_data


def launch_prepared(prepared: Prepared, watcher: Watcher) -> tuple[Outcome, Store]:
    """Create or find a study, and run it with its stored spec. Raises SpecError if the given spec differs."""
    prepared = with_earlier(prepared)
    with private_files():
        store = _store_of(prepared)
    row, is_new = _find_or_create(store, prepared)
    if not is_new:
        spec = from_store(row.spec, row.name).model_copy(update={"store": store.url})
        ignored = ignored_changes(row.name, prepared.spec, from_store(row.launched_spec, row.name), spec)
        if ignored:
            watcher.warn(ignored)
        again = prepare(spec, source=prepared.source, base_folder=Path(row.base_folder))
        prepared = replace(again, diagnostics=prepared.diagnostics)
        before = load_study(store, row.name)
        for line in changed_since(before, prepared.base_folder):
            watcher.warn(line)
        return _continued(store, row, prepared, watcher, before), store
    return drive(store, row, prepared, watcher), store


def _continued(store: Store, row: sa.Row[Any], prepared: Prepared, watcher: Watcher, before: StudyRecord) -> Outcome:
    """Run a stored study. Warns if it had already ended."""
    outcome = drive(store, row, prepared, watcher)
    if before.state == "closed" and not outcome.ran:
        longer = f"To search longer: `{before.resume_with_more}`. " if before.ended_by_budget else ""
        why = budget_note(prepared.spec) if before.ended_by_budget else before.why_ended
        watcher.warn(
            f"the study {before.name} had already ended ({why}), so nothing was trained and its result is shown again. "
            f"{longer}To start a new search, set another name for `study`"
        )
    return outcome


def _store_of(prepared: Prepared) -> Store:
    try:
        return Store(prepared.spec.store)
    except StoreError as error:
        raise SpecError(prepared.source, (), str(error)) from None


def find_or_create(store: Store, prepared: Prepared) -> sa.Row[Any]:
    """Return the row of a new study, or of the study of an equal spec. Raises SpecError if the specs differ."""
    return _find_or_create(store, prepared)[0]


def _find_or_create(store: Store, prepared: Prepared) -> tuple[sa.Row[Any], bool]:
    """Return the study's row, and True if this call created it."""
    name = prepared.spec.study
    row = store.study_row(name)
    if row is None:
        earlier = [one.to_plain() for one in prepared.earlier]
        with contextlib.suppress(StudyExistsError):  # another launch was faster
            store.create_study(name, stored_form(prepared.spec), str(prepared.base_folder), time.time(), earlier)
            return store.require(name), True
        row = store.require(name)
    stored = from_store(row.launched_spec, name)
    lines = differences(stored, _as_older(prepared.spec, stored))
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        problem = (
            f"a study {name!r} exists with another spec: {lines[0]}{more}. "
            "Take another name (study), or `automl resume` to continue the stored study"
        )
        raise SpecError(prepared.source, ("study",), problem)
    in_force = from_store(row.spec, name)
    if prepared.spec.budget not in (stored.budget, in_force.budget):
        raise SpecError(prepared.source, ("study",), _of_budget(load_study(store, name), in_force, prepared.spec))
    return row, False


def _of_budget(record: StudyRecord, in_force: StudySpec, given: StudySpec) -> str:
    """Return the message that refuses another budget, with a command that works."""
    exists = f"a study {record.name!r} exists with another {budget_note(in_force)}"
    try:
        check_budget(record, given, ["budget=yours"])
    except SpecError:
        return f"{exists}, and has spent more than yours. Take another name (study) to search anew"
    changed = [one.removeprefix("budget.") for one in differing_keys(in_force, given, ["budget"])]
    return f"{exists}. To continue it with yours: `{resume_command(record.name, given.budget.model_dump(), changed)}`"


def _as_older(spec: StudySpec, stored: StudySpec) -> StudySpec:
    """Remove default options of new studies that the stored study lacks."""
    new, known = list(options_of_new_studies(spec.task).items()), stored.task_options
    options = {name: one for name, one in spec.task_options.items() if name in known or (name, one) not in new}
    return spec.model_copy(update={"task_options": options})


PRICE_PATHS = (("resources",), ("resources", "price_per_slot_hour"))
"""Overrides that replace the price of `automl price set` by the spec's price."""


def resume(store: Store, name: str, overrides: Sequence[str], watcher: Watcher) -> Outcome:
    """Continue a study with overrides. Raises SpecError for a wrong override, StoreError if the study runs."""
    row = store.require(name)
    spec = from_store(row.spec, name)
    check = partial(leases.refuse_driven, study_id=row.id, name=name)
    if overrides:
        with store.snapshot() as connection:
            check(connection)
    changed = apply_resume_overrides(spec, overrides)
    record = load_study(store, name)
    check_budget(record, changed, overrides)
    in_store = changed.model_copy(update={"store": store.url})
    prepared = prepare(in_store, source=name, base_folder=Path(row.base_folder))
    resets_price = any(split_override(one)[0] in PRICE_PATHS for one in overrides)
    if row.usd_per_slot_hour == 0 and not resets_price and changed.budget.is_of_dollars_alone:
        raise SpecError(
            name,
            ("budget",),
            "the price of a slot is 0, so a budget in dollars would never be used up. "
            "Add budget.hours or budget.trials",
        )
    if overrides:
        check_in_place(mentioned_checkpoints(store, row.id))
        store.change_spec(row.id, stored_form(prepared.spec), resets_price=resets_price, check=check)
    place = prepared.place.at_price(None if resets_price else row.usd_per_slot_hour)
    short = hardly_enough(record, changed, place.slots * place.usd_per_slot_hour)
    for line in (*changed_since(record, prepared.base_folder), *filter(None, (short,))):
        watcher.warn(line)
    return _continued(store, store.require(name), prepared, watcher, record)


def ignored_changes(name: str, given: StudySpec, launched: StudySpec, in_force: StudySpec) -> str:
    """Return a warning about changes that a second launch ignores, or "". Values of the first launch do not count."""
    sections = [section for section in NOT_COMPARED if section != "store"]
    again = differing_keys(launched, given, sections)
    ignored = [key for key in differing_keys(in_force, given, sections) if key in again]
    if not ignored:
        return ""
    changeable = [key for key in ignored if key.partition(".")[0] in CHANGEABLE]
    cure = f". To change it: `automl resume {shlex.quote(name)} --set {changeable[0]}=...`" if changeable else ""
    verb = "differs and is" if len(ignored) == 1 else "differ and are"
    return f"{name} exists already, and its stored spec stays in force: {', '.join(ignored)} {verb} ignored{cure}"


def check_budget(record: StudyRecord, spec: StudySpec, overrides: Sequence[str]) -> None:
    """Raise SpecError if an override sets a limit below the used amount."""
    for override in overrides:
        path, _ = split_override(override)
        if path[0] != "budget":
            continue
        for name in path[1:2] or record.budget:
            problem = _problem(record, str(name), getattr(spec.budget, str(name), None))
            if problem:
                raise SpecError(f"--set {shown(override)}", ("budget", name), problem)


def hardly_enough(record: StudyRecord, spec: StudySpec, usd_per_hour: float) -> str:
    """Return a warning if the rest of the budget is too short for another start and epoch, else ""."""
    lefts = []
    if spec.budget.hours is not None:
        lefts.append(spec.budget.hours * 3600 - record.alive_seconds)
    if spec.budget.usd is not None and usd_per_hour > 0:
        lefts.append((spec.budget.usd - record.cost_nano_usd / NANO) / usd_per_hour * 3600)
    starts = [charge.seconds for charge in record.charges if charge.kind == "start"]
    epochs = [epoch.wall_seconds for trial in record.started for epoch in trial.epochs]
    if not lefts or not starts or not epochs or min(lefts) <= 0:
        return ""
    needed = warm_up_seconds(record) + median(starts) + median(epochs)
    if min(lefts) >= needed:
        return ""
    return (
        f"the budget leaves {duration(min(lefts))}, but a start and one epoch took about {duration(needed)}: "
        f"this may train nothing. Give more with --set budget.hours=... or budget.usd=..."
    )


def _problem(record: StudyRecord, name: str, limit: float | None) -> str:
    line = record.budget.get(name)
    if line is None or limit is None:
        return ""
    if name == "trials":
        least = f"at least the {line.spent:g} trials that have started"
        return f"found {limit:g}, allowed: {least}" if limit < line.spent else ""
    spent = exact_usd(line.spent) if name == "usd" else f"{line.spent:.4g} hours"
    return f"found {limit:g}, allowed: more than the amount spent ({spent})" if limit <= line.spent else ""


def changed_since(record: StudyRecord, folder: Path) -> list[str]:
    """Return a line for code files in `folder` and a line for data files that changed since the latest trial."""
    lines = []
    for kind, hashed in (("code_files", hash_of), ("data_files", hash_of_data)):
        number, files = _latest(record, kind)
        changed = [path for path, then in files.items() if _has_changed(folder / path, then, hashed)]
        saved = [path for path in changed if path.startswith(f"{FOLDER}/")]
        named = [path for path in changed if path not in saved]
        if saved:
            function = str(record.spec.get("task")).rpartition(":")[2]
            named.append(f"the training function {function} or a value that it reads")
        if named:
            lines.append(
                f"{listed(named)} changed after trial {number} had started: values before and after the change may not "
                "be comparable. Another study name starts a new study"
            )
    return lines


def _latest(record: StudyRecord, kind: str) -> tuple[int | None, Mapping[str, str]]:
    """Return the latest trial that recorded files of a kind, and their hashes."""
    known = [
        (attempt.started_at, trial.number, attempt.facts[kind])
        for trial in record.started
        for attempt in trial.attempts
        if attempt.facts.get(kind)
    ]
    if not known:
        return None, {}
    _, number, files = max(known, key=lambda one: one[0])
    return number, cast("Mapping[str, str]", files)


def _has_changed(path: Path, then: str, hashed: Callable[[Path], str]) -> bool:
    try:
        return hashed(path) != then
    except OSError:
        return True
