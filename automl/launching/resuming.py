"""Continuing a study: with another budget if wanted, and without what a second launch cannot change."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from automl.launching.changed_code import changed_code
from automl.launching.driving import Outcome, Watcher, drive
from automl.launching.preparing import prepare
from automl.stored.specs import from_store, stored_form
from reports.wording import exact_usd
from search_spaces.wording import shown
from studies.control.orphans import check_in_place
from studies.records import StudyRecord
from studies.spec.differences import NOT_COMPARED, differing_keys
from studies.spec.errors import SpecError
from studies.spec.overrides import split_override
from studies.spec.study_spec import CHANGEABLE, StudySpec, apply_resume_overrides
from studies.storage import lease as leases
from studies.storage.reader import load_study, mentioned_checkpoints
from studies.storage.store import Store

PRICE_PATHS = (("resources",), ("resources", "price_per_slot_hour"))
"""Overrides with which the spec's price replaces the one of `automl price set`."""


def resume(store: Store, name: str, overrides: Sequence[str], watcher: Watcher) -> Outcome:
    """Continue a study, with another budget, other resources or other checkpoints if overrides give them.

    Args:
        store: Store that holds the study.
        name: Name of the study.
        overrides: `path=value` each, as `--set` takes them.
        watcher: Functions that hear of the progress.

    Raises:
        SpecError: An override is wrong, or sets a limit below what the study has used up.
        StoreError: There is no such study, or it was simulated; or a controller drives it, which would not hear of
            the overrides.
    """
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
        raise SpecError(name, ("budget",), "found dollars only, allowed: hours or trials, since its slots cost nothing")
    if overrides:
        check_in_place(mentioned_checkpoints(store, row.id))
        store.change_spec(row.id, stored_form(prepared.spec), resets_price=resets_price, check=check)
    if changed_files := changed_code(record, prepared.base_folder):
        watcher.warn(changed_files)
    return drive(store, store.require(name), prepared, watcher)


def ignored_changes(name: str, given: StudySpec, launched: StudySpec, in_force: StudySpec) -> str:
    """Say which changes a second launch ignores: a study continues with the spec that it has in force.

    Args:
        name: Name of the study.
        given: Spec of this launch.
        launched: Spec of the first launch; what `automl resume` has changed since may be given as it was then.
        in_force: Spec that the study has now.

    Returns:
        One line; empty if nothing is ignored.
    """
    sections = [section for section in NOT_COMPARED if section != "store"]
    again = differing_keys(launched, given, sections)
    ignored = [key for key in differing_keys(in_force, given, sections) if key in again]
    if not ignored:
        return ""
    changeable = [key for key in ignored if key.partition(".")[0] in CHANGEABLE]
    cure = f"; `automl resume {shlex.quote(name)} --set {changeable[0]}=...` changes it" if changeable else ""
    verb = "differs and is" if len(ignored) == 1 else "differ and are"
    return f"{name} is stored already, and its stored spec holds: {', '.join(ignored)} {verb} ignored{cure}"


def check_budget(record: StudyRecord, spec: StudySpec, overrides: Sequence[str]) -> None:
    """Refuse a limit that leaves the study nothing to continue with.

    Args:
        record: Study as committed.
        spec: Spec with the overrides applied.
        overrides: `path=value` each; only the limits that they set are checked.

    Raises:
        SpecError: A limit is below what is used up; the message says how much that is.
    """
    for override in overrides:
        path, _ = split_override(override)
        if path[0] != "budget":
            continue
        for name in path[1:2] or record.budget:
            problem = _problem(record, str(name), getattr(spec.budget, str(name), None))
            if problem:
                raise SpecError(f"--set {shown(override)}", ("budget", name), problem)


def _problem(record: StudyRecord, name: str, limit: float | None) -> str:
    """What is wrong with a limit; empty if it leaves something. The number of started trials itself is allowed."""
    line = record.budget.get(name)
    if line is None or limit is None:
        return ""
    if name == "trials":
        least = f"at least the {line.spent:g} trials that have been started"
        return f"found {limit:g}, allowed: {least}" if limit < line.spent else ""
    spent = exact_usd(line.spent) if name == "usd" else f"{line.spent:.4g} hours"
    return f"found {limit:g}, allowed: more than what is spent ({spent})" if limit <= line.spent else ""
