"""What the page offers for a decision: the picker, hypervolume, marks, what pruning saved, parameters together."""

import io
import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from automl.terminal.explanation import print_explanation
from reports import content, curve_figures
from reports import page as picking
from reports.expected import savings, savings_lines
from reports.figures import hypervolume, hypervolume_in_words
from reports.gallery import figures_of_page
from reports.page import render, write_report
from reports.parameter_figures import BANDS, learning_rates, parallel_coordinates, surface, with_learning_rate
from reports.phrases import NOTHING
from reports.recommending import last_quarter_in_words
from studies.records.records import (
    SIMULATED_TASK,
    BudgetLine,
    ConfirmationRecord,
    Constraint,
    DecisionRecord,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.results import analysis
from studies.results.importance import effects
from studies.results.recommendation import recommended
from tests.reports.test_page import ACCURACY, FOUR, data_of, hostile, page_of_sixty, read
from tests.support.study_factory import COST, ERROR, build_study

CHANCE = "random continuation at rung 3, which keeps forecasts unbiased"


def with_decisions(trial: TrialRecord, *decisions: tuple[int, str, str]) -> TrialRecord:
    made = [DecisionRecord(epoch=epoch, action=action, reason=why) for epoch, action, why in decisions]  # type: ignore[arg-type]
    return replace(trial, decisions=tuple(made))


def test_the_headline_says_what_the_last_quarter_of_the_money_bought() -> None:
    study = build_study(30)
    assert f"The last quarter of the money {last_quarter_in_words(study)}." in content.lead(study, [])
    assert "Hypervolume" in {one.label for one in content.facts(study)}
    spent = replace(study, budget={"usd": BudgetLine(spent=99.7, limit=100.0)})
    assert {one.label: one for one in content.facts(spent)}["Spent"].note == "of $100.00 (100 %)"


@pytest.mark.parametrize("is_resumed", [False, True])
def test_dollars_of_confirmations_are_none_of_the_searchs(*, is_resumed: bool) -> None:
    """They add no milestone: counted, the last dollars bought nothing, and a resumed search seems to be late."""
    study = build_study(30)
    place = len(study.charges) // 2 if is_resumed else len(study.charges)
    cost = 2 * study.cost_nano_usd // 5
    confirming = replace(study.charges[place - 1], kind="confirm", trial=None, attempt=None, cost_nano_usd=cost)
    confirmed = replace(study, charges=(*study.charges[:place], confirming, *study.charges[place:]))
    assert confirmed.cost_nano_usd > study.cost_nano_usd
    assert analysis.hypervolume_curve(confirmed) == analysis.hypervolume_curve(study)
    assert analysis.last_quarter(confirmed) == analysis.last_quarter(study) is not None
    assert hypervolume_in_words(confirmed) == hypervolume_in_words(study)


def test_the_headline_has_no_overrun_of_confirmations_and_names_what_mattered() -> None:
    """They count as the study's time, but no limit binds them: 134 % of an hour would look like a fault."""
    study = replace(build_study(30), budget={"hours": BudgetLine(spent=1.34, limit=1.0)})
    made = ConfirmationRecord(
        trial=0, seed=1, epoch=1, epochs=1, metrics={"val_error": 0.1}, cost_nano_usd=1, checkpoint=None,
        confirmed_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    assert "134 %" in {one.label: one for one in content.facts(study)}["Time"].note
    assert "%" not in {one.label: one for one in content.facts(replace(study, confirmations=(made,)))}["Time"].note
    study = build_study(60)
    found = effects(study, ERROR)
    taken = recommended(study)
    assert found is not None
    assert taken is not None
    (line,) = content.mattered_lines({"val_error": found}, taken.params)
    first = next(iter(found.shares))
    low, high = found.bands[first]
    assert line.startswith(f"What mattered most for val_error: {first} ({found.shares[first]:.0%}, from {low:.0%} to ")
    assert low <= found.shares[first] <= high
    assert line in " ".join("".join(read(page_of_sixty()).text).split())


def test_limits_are_asked_for_in_the_direction_of_the_objective() -> None:
    study = build_study(60, objectives=FOUR)
    found = picking.limits(study, analysis.archive(study))
    assert [(one.name, one.side, one.unit) for one in found] == [
        ("cost_usd", "most", "$"), ("model_parameters", "most", ""), ("latency_ms", "most", "ms"),
    ]  # fmt: skip
    other = build_study(60, objectives=(COST, ACCURACY))
    assert [(one.name, one.side) for one in picking.limits(other, analysis.archive(other))] == [
        ("val_accuracy", "least")
    ]
    assert picking.limits(build_study(20, objectives=(ERROR,)), []) == []
    bounded = build_study(60, objectives=(COST, ERROR), constraints=(Constraint(metric="val_accuracy", min=0.3),))
    assert [(one.name, one.side) for one in picking.limits(bounded, analysis.archive(bounded))] == [
        ("val_error", "most"), ("val_accuracy", "least"),
    ]  # fmt: skip


def with_metric(name: str, *values: float) -> StudyRecord:
    """A study with a second objective of that name, whose trials, one for each value, are all kept."""
    plain = build_study(len(values), states=("complete",), objectives=(ERROR, Objective(metric=name)))
    worse = sorted(values, reverse=True)
    trials = []
    for place, (one, value) in enumerate(zip(plain.trials, worse, strict=True), 1):
        metrics = {**one.epochs[0].metrics, "val_error": 0.1 * place, name: value}
        measured = replace(one.epochs[0], metrics=metrics, is_milestone=True, checkpoint=f"/kept/{place}.pt")
        trials.append(replace(one, epochs=(measured,)))
    return replace(plain, trials=tuple(trials))


@pytest.mark.parametrize(
    ("name", "values", "unit", "scale", "hint"),
    [
        ("test_error", (0.1118, 0.40612), "%", 0.01, "11.18 to 40.61"),
        ("test_error", (0.5, 17.0), "", 1.0, "0.5 to 17"),
        ("model_parameters", (78_090.0, 1.24e6), "M", 1e6, "0.07809 to 1.24"),
        ("model_parameters", (64.0, 78_090.0), "", 1.0, "64 to 78,090"),
        ("peak_memory_bytes", (3.2e8, 3.21e9), "GB", 1e9, "0.32 to 3.21"),
        ("epoch_seconds", (12.0, 240.0), "min", 60.0, "0.2 to 4"),
        ("epoch_seconds", (0.001, 0.0125), "ms", 0.001, "1 to 12.5"),
        ("latency_ms", (0.5, 4.25), "ms", 1.0, "0.5 to 4.25"),
        ("paid_usd", (0.000005, 2.5), "$", 1.0, "$0.000005 to $2.50"),
    ],
)
def test_a_limit_is_typed_in_the_unit_that_its_hint_shows(name, values, unit, scale, hint) -> None:
    study = with_metric(name, *values)
    (found,) = picking.limits(study, analysis.archive(study))
    assert (found.unit, found.scale, found.hint) == (unit, scale, hint)


def test_the_picker_takes_numbers_in_the_unit_beside_the_field(page: Any, tmp_path: Path) -> None:
    for name, values, typed in (
        ("test_error", (0.1, 0.57, 0.6), {"57": "1@1"}),
        ("model_parameters", (1.1e6, 1.24e6, 3e6), {"2": "1@1", "1.1": "2@1"}),
    ):
        page.goto(write_report(with_metric(name, *values), tmp_path / "report.html").as_uri())
        assert page.inner_text("#picker label").split()[-2:] == ["most", "%" if name == "test_error" else "M"]
        for text, taken in typed.items():
            page.locator("#picker input").fill(text)
            assert page.inner_text("#picked").startswith(f"Take {taken}: "), (name, text)


def test_the_picker_answers_with_the_best_kept_model_within_the_limits(page: Any, tmp_path: Path) -> None:
    study = build_study(60)
    archive = sorted(analysis.archive(study), key=lambda point: point.values["val_error"])
    limit = archive[len(archive) // 2].values["cost_usd"] * 1.0001
    allowed = next(point for point in archive if point.values["cost_usd"] <= limit)
    page.goto(write_report(study, tmp_path / "report.html").as_uri())
    assert page.inner_text("#picked").startswith(f"Take {archive[0].trial}@{archive[0].epoch}: ")
    page.get_by_label("for cost_usd of at most $").fill(repr(limit))
    assert page.inner_text("#picked").startswith(f"Take {allowed.trial}@{allowed.epoch}: ")
    assert page.inner_text("#taking code") == f"automl export digits {allowed.trial}@{allowed.epoch} --out model"
    assert page.locator("#models tr.out").count() == sum(point.values["cost_usd"] > limit for point in archive)
    page.get_by_label("for cost_usd of at most $").fill("0")
    assert page.inner_text("#picked") == "No model keeps these limits."
    assert not page.is_visible("#taking")
    # It answered with the best row, whether there was a command to take its model or not.
    study = with_metric("test_error", 0.1, 0.15, 0.4)
    first, *rest = study.trials
    gone = replace(first, epochs=(replace(first.epochs[0], checkpoint=None),))
    page.goto(write_report(replace(study, trials=(gone, *rest)), tmp_path / "report.html").as_uri())
    assert page.inner_text("#picked").startswith("Take 1@1: ")
    assert page.inner_text("#taking code") == "automl export digits 1@1 --out model"
    nothing = [replace(one, epochs=(replace(one.epochs[0], checkpoint=None),)) for one in study.trials]
    page.goto(write_report(replace(study, trials=tuple(nothing)), tmp_path / "none.html").as_uri())
    assert page.inner_text("#picked").startswith("The model was not kept of 0@1: ")
    assert not page.is_visible("#taking")
    simulated = replace(study, spec={**study.spec, "task": SIMULATED_TASK})
    page.goto(write_report(simulated, tmp_path / "simulated.html").as_uri())
    assert page.inner_text("#picked").startswith("Take "), "of a simulation no model is kept anywhere"


def test_rows_of_large_studies_come_after_the_first_chart_or_when_asked_for(browser, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("reports.page.FIRST_ROWS", 20)
    page = browser.new_page(viewport={"width": 400, "height": 300})
    page.goto(write_report(hostile(), tmp_path / "report.html").as_uri())
    assert page.locator("#more").count() == 0
    page.wait_for_function("() => document.querySelectorAll('#trials tbody tr').length === 30")
    assert "30 of 30 shown" in page.inner_text("#count")
    assert page.locator("#trials td img, #trials td script").count() == 0
    page.close()
    monkeypatch.setattr("reports.page.FIRST_ROWS", 20)
    monkeypatch.setattr("reports.page.MOST_ROWS", 20)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_report(hostile(), tmp_path / "report.html").as_uri())
    rows = "#trials tbody tr:not([hidden])"
    assert page.locator(rows).count() == 20
    page.click("#more")
    page.wait_for_function("() => document.querySelectorAll('#trials tbody tr').length === 30")
    assert "30 of 30 shown" in page.inner_text("#count")
    assert page.locator("#trials td img, #trials td script").count() == 0
    states = page.locator("#trials tbody tr").evaluate_all("rows => rows.map(row => row.dataset.state)")
    assert set(states) <= {"complete", "pruned", "failed"}
    page.close()


def test_hypervolume_is_a_share_of_what_is_known() -> None:
    found: Any = hypervolume(build_study(30))
    (known,) = found["data"]
    assert known["y"][-1] == 100


def test_marks_have_their_reasons_broken_into_lines_and_escaped() -> None:
    study = build_study(6, states=("complete",))
    one, other = study.trials[:2]
    one = with_decisions(one, (3, "pause", "waits at rung 3"), (3, "continue", "thawed: worth more"))
    other = with_decisions(other, (3, "continue", CHANCE), (9, "continue", "worth most at rung 9"))
    drawn: Any = curve_figures.learning_curves([one, other], ERROR)["data"]
    marks = {trace["name"]: trace for trace in drawn if trace["name"] in {mark.name for mark in curve_figures.MARKS}}
    assert set(marks) == {"paused here", "thawed here", "went on by chance"}
    assert "thawed: worth more" in marks["thawed here"]["text"][0]
    assert marks["went on by chance"]["x"] == [3]
    assert CHANCE in marks["went on by chance"]["text"][0]
    study = build_study(1, states=("complete",))
    trial = with_decisions(study.trials[0], (3, "pause", "<b>waits</b> " * 30))
    drawn = curve_figures.learning_curves([trial], ERROR)["data"]
    (text,) = next(trace["text"] for trace in drawn if trace["name"] == "paused here")
    assert max(len(line) for line in text.replace("&lt;", "<").replace("&gt;", ">").split("<br>")) <= 71
    assert "<b>" not in text


def saved(*, continued: int, found: int) -> StudyRecord:
    """A study of whose stopped trials some went on by chance, and of these some gave a model of the archive."""
    study = build_study(40, states=("complete", "pruned"))
    best = {point.trial for point in analysis.archive(study) if point.epoch > 9}
    complete = [t for t in study.trials if t.state == "complete"]
    chosen = [t for t in complete if t.number in best][:found]
    chosen += [t for t in complete if t.number not in best][: continued - found]
    numbers = {t.number for t in chosen}
    trials = tuple(with_decisions(t, (3, "continue", CHANCE)) if t.number in numbers else t for t in study.trials)
    return replace(study, trials=trials)


def test_savings_are_the_epochs_that_stopped_trials_did_not_train() -> None:
    study = saved(continued=0, found=0)
    found = savings(study, analysis.archive(study))
    pruned = [t for t in study.started if t.state == "pruned"]
    assert found.stopped == len(pruned)
    assert found.epochs == sum(20 - len(t.epochs) for t in pruned)
    left = sum((20 - len(t.epochs)) * t.epochs[-1].cost_nano_usd for t in pruned)
    assert found.usd == pytest.approx(left / 1e9)
    assert found.missed is None
    assert "it is unknown what the stopped trials would have found" in savings_lines(study, analysis.archive(study))[1]
    study = build_study(9, states=("complete",))
    assert savings_lines(study, analysis.archive(study)) == []
    assert "What pruning saved" not in render(study)
    unknown = replace(build_study(20), spec={})
    assert savings(unknown, analysis.archive(unknown)) is None


def test_the_start_of_a_program_is_not_saved_with_each_epoch() -> None:
    study = saved(continued=0, found=0)
    first = [replace(t.epochs[0], cost_nano_usd=20 * t.epochs[0].cost_nano_usd) for t in study.trials]
    trials = tuple(replace(t, epochs=(one, *t.epochs[1:])) for t, one in zip(study.trials, first, strict=True))
    programs = replace(study, trials=trials, spec={**study.spec, "task": "command"})
    plain = savings(study, analysis.archive(study))
    assert savings(programs, analysis.archive(study)).usd == pytest.approx(plain.usd)
    stopped = next(place for place, trial in enumerate(trials) if trial.state == "pruned")
    short = replace(trials[stopped], epochs=trials[stopped].epochs[:1])
    one_epoch = replace(programs, trials=(*trials[:stopped], short, *trials[stopped + 1 :]))
    assert savings(one_epoch, analysis.archive(study)).usd == pytest.approx(plain.usd, rel=0.2)


@pytest.mark.parametrize(("found", "said"), [(0, "none gave one of the best models."), (1, "1 gave one of the best")])
def test_what_was_missed_is_estimated_from_trials_that_went_on_by_chance(found: int, said: str) -> None:
    study = saved(continued=2, found=found)
    archive = analysis.archive(study)
    told = savings(study, archive)
    assert (told.continued, told.found) == (2, found)
    assert told.missed == told.stopped * found / 2
    assert said in savings_lines(study, archive)[1]
    assert said in " ".join(render(study).split())


def test_parallel_coordinates_and_the_surface_show_the_parameters_that_matter() -> None:
    study = build_study(60)
    shares = effects(study, ERROR).shares
    found: Any = parallel_coordinates(study, ERROR, shares)
    assert [trace["name"] for trace in found["data"]] == [name for name, _ in reversed(BANDS)]
    assert found["layout"]["xaxis"]["ticktext"][-2:] == ["learning_rate", "val_error"]
    best = found["data"][-1]
    ends = [y for x, y in zip(best["x"], best["y"], strict=True) if x == len(shares)]
    assert max(ends) < 0.5
    assert all(y is None or 0 <= y <= 1 for trace in found["data"] for y in trace["y"])
    assert parallel_coordinates(build_study(9), ERROR, {}) is None
    page = data_of(page_of_sixty())
    contour, dots, star = page["surface-0"]["data"]
    assert contour["type"] == "contour"
    assert page["surface-0"]["layout"]["xaxis"]["title"]["text"] == "learning_rate"
    assert page["surface-0"]["layout"]["yaxis"]["title"]["text"] == "width"
    assert len(contour["z"]) == len(contour["y"])
    assert len(dots["x"]) == 60
    taken = recommended(build_study(60))
    assert star["x"][0] == pytest.approx(taken.params["learning_rate"], rel=1e-3)
    other_branch = replace(taken, params={"width": taken.params["width"]})
    assert surface(study, ERROR, effects(study, ERROR), other_branch) is None
    assert surface(build_study(9), ERROR, effects(study, ERROR), taken) is None


def test_the_scaling_rule_goes_through_the_recommended_model() -> None:
    study = build_study(40)
    ruled = tuple(
        replace(t, attempts=tuple(replace(a, facts={**a.facts, "lr_scaling": "sqrt"}) for a in t.attempts))
        for t in study.trials
    )
    study = replace(study, trials=ruled)
    taken = recommended(study)
    found: Any = learning_rates(study, taken)
    (line,) = [trace for trace in found["data"] if trace["mode"] == "lines"]
    assert line["name"] == f"sqrt rule through trial {taken.point.trial}"
    (x, y), (more_x, more_y) = zip(line["x"], line["y"], strict=True)
    assert math.log(more_y / y) == pytest.approx(0.5 * math.log(more_x / x), rel=1e-3)
    facts = study.started[taken.point.trial].attempts[0].facts
    assert y * (facts["effective_batch"] / x) ** 0.5 == pytest.approx(facts["scaled_learning_rate"], rel=1e-3)  # type: ignore[operator]


def test_trials_without_a_learning_rate_of_their_own_are_not_drawn_by_it() -> None:
    """As boosted trees in a space that has a rate for networks: what the trainer was given says nothing of them."""
    study = build_study(40)
    taken = recommended(study)
    chosen = study.started[taken.point.trial]
    trees = replace(chosen, params={name: one for name, one in chosen.params.items() if name != "learning_rate"})
    mixed = replace(study, trials=tuple(trees if one is chosen else one for one in study.trials))
    assert trees.number not in with_learning_rate(mixed)
    found: Any = learning_rates(mixed, recommended(mixed))
    assert not any(f"trial {chosen.number} " in text for trace in found["data"] for text in trace.get("text", []))
    early = {row.trial: row.early for row in content.archive_rows(mixed, analysis.archive(mixed))}
    assert early[taken.point.trial] is False
    assert rates_told(mixed, trees) == [NOTHING] * 3
    assert NOTHING not in rates_told(mixed, mixed.started[0])
    alone = replace(trees, number=0)
    told = rates_told(replace(study, trials=(alone,)), alone)
    assert told == [NOTHING] * 3, "the space has a rate, though no trial has it yet"


@pytest.mark.parametrize(("task", "facts"), [("command", {}), ("train:run", {"models": ["model"]})])
def test_loops_of_users_have_a_learning_rate_where_they_are_given_one(task: str, facts: dict[str, Any]) -> None:
    """A loop of XGBoost, or a command that prints metrics, never hears of the trainer's default."""
    study = build_study(1)
    (trial,) = study.trials
    spec = {**study.spec, "task": task, "space": {"width": study.spec["space"]["width"]}}  # type: ignore[index]
    attempts = tuple(replace(one, facts={**one.facts, **facts}) for one in trial.attempts)
    bare = replace(trial, attempts=attempts, params={"width": 8})
    assert rates_told(replace(study, spec=spec, trials=(bare,)), bare) == [NOTHING] * 3
    given = replace(bare, params={"width": 8, "learning_rate": 0.05})
    assert NOTHING not in rates_told(replace(study, spec=spec, trials=(given,)), given)


def rates_told(study: StudyRecord, trial: TrialRecord) -> list[str]:
    """What the table of trials says of a trial's batch and rates; `automl explain` says as much."""
    heads, rows = content.trial_table(study)
    columns = [[name for name, _ in heads].index(name) for name in ("effective batch", "base rate", "scaled rate")]
    told = [rows[study.started.index(trial)][column].text for column in columns]
    console = Console(file=io.StringIO(), width=200)
    ruled = tuple(replace(one, facts={**one.facts, "lr_scaling": "linear"}) for one in trial.attempts)
    print_explanation(console, study, replace(trial, attempts=ruled))
    assert ("learning rate" in console.file.getvalue()) is (NOTHING not in told)  # type: ignore[attr-defined]
    return told


def test_there_is_no_figure_of_learning_rates_without_batches() -> None:
    study = build_study(9)
    nothing = replace(study, trials=tuple(replace(t, attempts=()) for t in study.trials))
    assert learning_rates(nothing, None) is None
    assert "learning_rates" not in figures_of_page(nothing, [])


def test_every_figure_has_a_label_of_its_own() -> None:
    study = build_study(60, objectives=(*FOUR, ERROR))
    drawn = figures_of_page(study, analysis.archive(study))
    labels = [one.label for group in drawn.values() for one in group.values()]
    assert len(labels) == len(set(labels)) > 20
    assert json.dumps(labels)
