"""Compares the views of a study with its rows, using Optuna's own tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from automl.stored.audit_findings import Asker, Finding, plain
from studies.storage.views.cursors import VIEWS, is_off

OPTUNA_STATES: Mapping[str, str] = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
"""Optuna's state of an ended trial; running and paused ones are RUNNING there."""


def view_findings(ask: Asker, row: sa.Row[Any], *, is_driven: bool) -> Iterator[Finding]:
    """Check the views of a study; the views of a driven study may be behind."""
    cursors = ask("SELECT view, revision, rebuild, error FROM automl_view_cursors WHERE study_id = :study")
    if not set(VIEWS) <= {one.view for one in cursors}:
        yield Finding(check="views", where="cursors", found=f"{sorted(one.view for one in cursors)}")
    for cursor in cursors:
        if cursor.view not in VIEWS or (cursor.view == "mlflow" and is_off(row.spec.get("mlflow"))):
            continue
        if cursor.revision > row.revision:
            found = f"it has seen revision {cursor.revision} of {row.revision}"
            yield Finding(check="views", where=cursor.view, found=found)
        elif cursor.rebuild or cursor.revision < row.revision:
            if not is_driven:
                found = f"{row.revision - cursor.revision} revisions behind: `automl sync` rebuilds it"
                yield Finding(check="views", where=cursor.view, found=found)
        elif cursor.view == "optuna":
            yield from (
                Finding(check="views", where=f"optuna, {where}", found=found) for where, found in _optuna(ask, row)
            )


def _optuna(ask: Asker, row: sa.Row[Any]) -> Iterator[tuple[str, str]]:
    if not ask.has_table("trial_values"):
        yield "tables", "there are none, but the view is said to be complete"
        return
    theirs = _their_trials(ask, row.name)
    ours = {one.number: one for one in ask(
        "SELECT id, number, state, params FROM automl_trials WHERE study_id = :study AND number IS NOT NULL"
    )}  # fmt: skip
    if theirs.keys() != ours.keys():
        yield "trials", f"{len(theirs)} in the view, {len(ours)} in the store"
        return
    values, params = _their_values(ask, row.name), _their_params(ask, row.name)
    last = _last_metrics(ask)
    objectives = [one["metric"] for one in row.spec["objectives"]]
    for number, trial in ours.items():
        state = OPTUNA_STATES.get(trial.state, "RUNNING")
        if theirs[number] != state:
            yield f"trial {number}", f"{theirs[number]} in the view, {trial.state} in the store"
        mine = [last.get(trial.id, {}).get(metric) for metric in objectives]
        if state == "COMPLETE" and not _are_equal(values.get(number, []), mine):
            yield f"trial {number}", f"values {values.get(number)} in the view, {mine} in the store"
        if unknown := params.get(number, set()) - set(plain(trial.params)):
            yield f"trial {number}", f"parameters {sorted(unknown)} in the view, which the trial has not"


def _are_equal(theirs: list[float], ours: list[float | None]) -> bool:
    return len(theirs) == len(ours) and all(
        one is not None and abs(other - one) <= 1e-12 * max(1.0, abs(one))
        for other, one in zip(theirs, ours, strict=True)
    )


def _their_trials(ask: Asker, name: str) -> dict[int, str]:
    sql = "SELECT t.number, t.state FROM trials t JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :name"
    return {row.number: str(row.state) for row in ask(sql, name=name)}


def _their_values(ask: Asker, name: str) -> dict[int, list[float]]:
    rows = ask(
        "SELECT t.number, v.value FROM trial_values v JOIN trials t ON t.trial_id = v.trial_id "
        "JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :name ORDER BY t.number, v.objective",
        name=name,
    )
    return {number: [float(row.value) for row in of_trial] for number, of_trial in _by_trial(rows).items()}


def _their_params(ask: Asker, name: str) -> dict[int, set[str]]:
    rows = ask(
        "SELECT t.number, p.param_name FROM trial_params p JOIN trials t ON t.trial_id = p.trial_id "
        "JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :name",
        name=name,
    )
    return {number: {row.param_name for row in of_trial} for number, of_trial in _by_trial(rows).items()}


def _by_trial(rows: Sequence[sa.Row[Any]]) -> dict[int, list[sa.Row[Any]]]:
    found: dict[int, list[sa.Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.number, []).append(row)
    return found


def _last_metrics(ask: Asker) -> dict[int, Mapping[str, float | None]]:
    rows = ask(
        "SELECT e.trial_id, e.metrics FROM automl_epochs e JOIN automl_trials t ON t.id = e.trial_id "
        "JOIN (SELECT trial_id, MAX(epoch) AS epoch FROM automl_epochs GROUP BY trial_id) l "
        "ON l.trial_id = e.trial_id AND l.epoch = e.epoch WHERE t.study_id = :study AND t.state = 'complete'"
    )
    return {row.trial_id: plain(row.metrics) for row in rows}
