from __future__ import annotations

import csv
import io
import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import optuna
import pytest

from reports.recommending import last_quarter_in_words
from search_spaces.untrusted_text import redact, redact_deep
from studies.records.plain_rows import to_csv
from studies.records.records import (
    NANO,
    TRIAL_STATES,
    BudgetLine,
    ChargeRecord,
    EpochRecord,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.results import analysis
from studies.results.importance import effects
from studies.results.pareto import reference_of, reference_point
from tests.support.study_factory import COST, ERROR, Ledger, build_study, build_trial, nano

ACCURACY = Objective(metric="val_accuracy", direction="maximize")


def trial(number: int, *points: tuple[float, float], state: str = "complete", **changes: object) -> TrialRecord:
    """A trial whose epochs, all milestones, have these values of val_error and cost_usd."""
    epochs = tuple(
        EpochRecord(
            epoch=i, metrics={"val_error": error, "cost_usd": cost}, wall_seconds=2.0,
            cost_nano_usd=round(cost * 1e9 / i), checkpoint=f"/kept/{number}/{i}", is_milestone=True,
        )
        for i, (error, cost) in enumerate(points, 1)
    )  # fmt: skip
    record = TrialRecord(id=number, number=number, state=state, params={"lr": number / 10}, epochs=epochs)  # type: ignore[arg-type]
    return replace(record, **changes)  # type: ignore[arg-type]


def study_of(*trials: TrialRecord, **changes: object) -> StudyRecord:
    return replace(build_study(0), trials=trials, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("objectives", [(ERROR,), (ACCURACY, COST, ERROR)])
def test_front_equals_optunas_best_trials(objectives: tuple[Objective, ...]) -> None:
    study = build_study(60, objectives=objectives)
    view = optuna.create_study(directions=[o.direction for o in objectives])
    states = {"complete": optuna.trial.TrialState.COMPLETE, "failed": optuna.trial.TrialState.FAIL}
    for record in study.started:
        state = states.get(record.state, optuna.trial.TrialState.PRUNED)
        values = list(record.values(objectives).values()) if record.state == "complete" else None
        view.add_trial(optuna.trial.create_trial(state=state, values=values))
    best = {t.number for t in view.best_trials}
    assert {p.trial for p in analysis.front(study)} == best


def test_front_keeps_equal_points_and_the_archive_the_earliest() -> None:
    study = study_of(trial(0, (0.5, 1.0)), trial(1, (0.5, 1.0)), trial(2, (0.6, 2.0)))
    assert [p.trial for p in analysis.front(study)] == [0, 1]
    assert [(p.trial, p.epoch) for p in analysis.archive(study)] == [(0, 1)]


def test_of_equal_points_the_archive_has_one_whose_model_is_kept() -> None:
    gone = trial(0, (0.5, 1.0))
    gone = replace(gone, epochs=(replace(gone.epochs[0], checkpoint=None),))
    study = study_of(gone, trial(1, (0.5, 1.0)))
    assert [(p.trial, p.checkpoint) for p in analysis.archive(study)] == [(1, "/kept/1/1")]
    assert [p.trial for p in analysis.archive(study_of(gone))] == [0], "one without a model, if there is no other"


def test_archive_holds_milestones_of_pruned_and_failed_trials() -> None:
    study = study_of(
        trial(0, (0.9, 3.0)),
        trial(1, (0.5, 2.0), (0.1, 4.0), state="pruned"),
        trial(2, (0.4, 1.0), (math.nan, 2.0), state="failed", failure="diverged"),
    )
    assert [(p.trial, p.epoch, p.state) for p in analysis.archive(study)] == [(1, 2, "pruned"), (2, 1, "failed")]
    assert [p.trial for p in analysis.front(study)] == [0]


def test_reference_point_extrapolates_cumulative_objectives_and_drops_outliers() -> None:
    # Each epoch costs 0.1, so a milestone at epoch 2 becomes 0.2 + 8 * 0.1 = 1.0 at epoch 10.
    trials = [trial(i, (0.5 + i / 100, 0.1), (0.3 + i / 100, 0.2), state="pruned") for i in range(5)]
    trials.append(trial(5, (1e6, 0.1), state="pruned"))
    found = reference_point(trials, (ERROR, COST), 10)
    assert found["val_error"] == pytest.approx(0.54 + 0.1 * (0.54 - 0.3))
    assert found["cost_usd"] == pytest.approx(1.0 + 0.1 * 0.1 * 1.0)


def test_the_reference_point_takes_a_complete_trial_at_what_it_cost() -> None:
    """Also one that stopped improving: it never was to train on."""
    trials = [trial(i, (0.5 + i / 100, 0.1), (0.3 + i / 100, 0.2)) for i in range(5)]
    found = reference_point(trials, (ERROR, COST), 10)
    assert found["cost_usd"] == pytest.approx(0.2 + 0.1 * 0.1 * 0.2)


def test_reference_point_of_a_maximised_objective_lies_below() -> None:
    epochs = tuple(
        EpochRecord(epoch=i, metrics={"val_accuracy": v}, wall_seconds=1.0, cost_nano_usd=1, is_milestone=True)
        for i, v in enumerate([0.5, 0.9], 1)
    )
    found = reference_point([trial(0, epochs=epochs)], (ACCURACY,), 2)
    assert found == {"val_accuracy": pytest.approx(0.5 - 0.1 * 0.4)}


def test_reference_point_is_unknown_without_a_milestone_and_the_stored_one_wins() -> None:
    assert reference_point([trial(0)], (ERROR, COST), 10) is None
    given = {"val_error": 1.0, "cost_usd": 2.0}
    study = study_of(trial(0, (0.5, 1.0)), reference_point=given)
    assert reference_of(study) == given
    assert analysis.hypervolume(study) == pytest.approx(0.5)
    assert analysis.hypervolume(study, {"val_error": 0.6, "cost_usd": 2.0}) == pytest.approx(0.1)


def test_hypervolume_of_maximised_objectives() -> None:
    study = build_study(30, objectives=(ACCURACY, COST))
    assert analysis.hypervolume(study) == pytest.approx(
        analysis.hypervolume(replace(study, objectives=(ERROR, COST)), _mirrored(reference_of(study)))
    )


def _mirrored(reference: dict[str, float] | None) -> dict[str, float]:
    return {"val_error": 1 - reference["val_accuracy"], "cost_usd": reference["cost_usd"]}


def test_hypervolume_curve_rises_to_the_archives_at_the_studys_cost() -> None:
    study = build_study(60)
    curve = analysis.hypervolume_curve(study)
    dollars, volumes = [p.cost_usd for p in curve], [p.hypervolume for p in curve]
    assert dollars == sorted(dollars)
    assert volumes == sorted(volumes)
    assert dollars[-1] == pytest.approx(study.cost_nano_usd / 1e9)
    assert volumes[-1] == pytest.approx(analysis.hypervolume(study))
    # The first milestone is epoch 3 of trial 0: nothing can have been found before its charge.
    assert dollars[1] == pytest.approx(study.started[0].epochs[2].metrics["cost_usd"])


def test_hypervolume_curve_survives_missing_charges() -> None:
    study = replace(build_study(20), charges=())
    assert analysis.hypervolume_curve(study)[-1].hypervolume == pytest.approx(analysis.hypervolume(study))
    assert analysis.hypervolume_curve(build_study(0)) == []


def test_money_adds_up_to_the_ledger_in_both_views() -> None:
    study = build_study(60)
    total = study.cost_nano_usd / 1e9
    assert sum(analysis.money_by_kind(study).values()) == pytest.approx(total, abs=1e-12)
    assert sum(analysis.money_by_outcome(study).values()) == pytest.approx(total, abs=1e-12)
    pruned = sum(t.paid_nano_usd for t in study.started if t.state == "pruned")
    assert analysis.money_by_outcome(study)["pruned"] == pytest.approx(pruned / 1e9)
    assert analysis.money_by_kind(study)["confirm"] == 0.0


@pytest.mark.parametrize("study", [build_study(0), build_study(5), study_of(*[trial(i, (0.5, 1.0)) for i in range(9)])])
def test_importance_is_silent_when_it_knows_nothing(study: StudyRecord) -> None:
    assert effects(study, ERROR) is None


def test_summary_has_the_contracts_keys_and_is_json() -> None:
    study = build_study(30)
    broken = replace(study, budget={"usd": BudgetLine(limit=math.inf, spent=math.nan)}, overshoot_nano_usd=1_000)
    document = analysis.summary(broken, report="/tmp/report.html")
    expected = "study state driven stop_reason error trials running front archive hypervolume reference_point "
    expected += "next_10_usd_percent cost_usd"
    assert list(document) == [
        *expected.split(), "charges", "budget", "overshoot_usd", "wall_seconds", "views", "report"
    ]  # fmt: skip
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["budget"] == {
        "usd": {"limit": None, "spent": None, "reserved": 0.0},
        "hours": {"limit": None, "spent": 0.0, "reserved": 0.0},
        "trials": {"limit": None, "spent": 0.0, "reserved": 0.0},
    }
    assert document["overshoot_usd"] == 1e-6
    states = [t.state for t in study.trials]
    assert document["trials"] == {s: states.count(s) for s in TRIAL_STATES}
    assert set(document["archive"][0]) == {"trial", "epoch", "state", "values", "checkpoint"}  # type: ignore[index]
    queued = study_of(trial(0, (0.5, 1.0)), TrialRecord(id=9, number=None, state="queued", params={"lr": 1.0}))
    assert analysis.summary(queued)["trials"]["queued"] == 1  # type: ignore[index]
    assert [row["trial"] for row in analysis.trial_rows(queued)] == [0], "what is queued has no row"


def test_trial_rows_and_csv() -> None:
    study = study_of(trial(1, (math.nan, 1.0), params={"a": 1, "b": "x,y"}), trial(0, params={"a": 2, "c": None}))
    rows = analysis.trial_rows(study)
    assert [row["trial"] for row in rows] == [0, 1]
    assert rows[0]["values"] == {}
    assert rows[0]["epochs"] == 0
    assert rows[1]["values"] == {"val_error": None, "cost_usd": 1.0}
    table = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert list(table[0])[:6] == ["trial", "state", "failure", "params.a", "params.c", "params.b"]
    assert table[1]["params.b"] == "x,y"
    assert to_csv([]).startswith("trial,state")


def test_trial_costs_are_whole_nano_dollars_divided_once() -> None:
    ledger = Ledger()
    record = build_trial(
        0, {"width": 64, "learning_rate": 0.1}, ledger, depth=3, state="complete", rng=random.Random(1)
    )
    assert record.paid_nano_usd == sum(c.cost_nano_usd for c in ledger.charges)
    assert analysis.trial_rows(study_of(record))[0]["cost_usd"] == record.paid_nano_usd / 1e9
    assert nano(1, 3600.0) == 2_000_000_000


def test_jsonable_replaces_what_json_lacks_at_any_depth() -> None:
    value = {"a": [math.nan, (math.inf, 1)], 2: {"b": -math.inf, "c": True}}
    assert analysis.jsonable(value) == {"a": [None, [None, 1]], "2": {"b": None, "c": True}}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql+psycopg://me:hunter2@db:5432/automl", "hunter2"),
        ("failed at https://token-abc@host/x, twice", "token-abc"),
        ("postgresql://me:p@ss/w:rd@db/x", "ss/w:rd"),
        ("postgresql://db/x?user=me&password=hunter2&sslmode=require", "hunter2"),
        ("redis://:hunter2@cache/0", "hunter2"),
    ],
)
def test_redact_hides_credentials(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "***" in redact(text)
    assert secret not in json.dumps(redact_deep({"a": [text, {"b": (text,)}], "n": 1}))


@pytest.mark.parametrize("text", ["sqlite:///automl.db", "http://localhost:5000/", "me@example.org: https://a.b/c", ""])
def test_redact_leaves_other_text_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.medium
def test_readers_of_records_load_no_heavy_library() -> None:
    code = (
        "import sys, studies.results.analysis, studies.results.importance, search_spaces.untrusted_text; "
        "print({'plotly', 'sqlalchemy', 'torch', 'ray', 'optuna', 'moocore', 'sklearn', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_large_growth_is_no_number() -> None:
    assert analysis.growth_in_words(16664053.05) == "more than 100 %"
    assert analysis.growth_in_words(99.7) == "about 100 %"


def test_the_last_quarter_of_the_money_is_what_the_best_model_gained_in_it() -> None:
    def paid(number: int, usd: float, place: int) -> ChargeRecord:
        return ChargeRecord(
            kind="train", trial=number, attempt=1, slots=1, seconds=1.0, usd_per_slot_hour=1.0,
            cost_nano_usd=round(usd * NANO), charged_at=datetime(2026, 1, 1, 0, place, tzinfo=UTC),
        )  # fmt: skip

    trials = (trial(0, (0.2, 1.0)), trial(1, (0.1, 6.0)), trial(2, (0.04, 3.0)))
    charges = tuple(paid(number, usd, place) for place, (number, usd) in enumerate([(0, 1.0), (1, 6.0), (2, 3.0)]))
    study = study_of(*trials, charges=charges)
    assert analysis.last_quarter(study) == (0.1, 0.04)
    assert last_quarter_in_words(study) == "improved val_error from 10 % to 4 %"
    assert analysis.last_quarter(study_of(*trials[:2], charges=charges)) == (0.1, 0.1)
    assert last_quarter_in_words(study_of(*trials[:2], charges=charges)) == "did not improve val_error"
    assert analysis.last_quarter(study_of(trials[2], charges=charges)) == (None, 0.04)
    assert last_quarter_in_words(study_of(trials[2], charges=charges)) == "found the first model"
    assert analysis.last_quarter(study_of(charges=charges)) is None
    assert analysis.last_quarter(study_of(*trials, charges=())) is None, "nothing was paid"
