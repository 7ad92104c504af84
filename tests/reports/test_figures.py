"""Forecasts, devices over time, and the picture that needs no script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reports import curve_figures, figures
from reports.expected import (
    FEWEST_CHECKS,
    MOST_BANDS,
    MOST_ENDS,
    Checked,
    _judged,
    ahead,
    calibration,
    calibration_lines,
    share_inside,
)
from reports.figures import trade_off
from reports.front_picture import front_picture
from reports.page import render, write_report
from reports.phrases import interval
from reports.timeline import MOST_BARS, timeline, timeline_line
from studies.records.records import (
    INTERVAL,
    Action,
    AttemptRecord,
    ChargeKind,
    ChargeRecord,
    DecisionRecord,
    Forecast,
    Objective,
    StudyRecord,
    TrialRecord,
)
from studies.results import analysis
from tests.reports.test_page import ACCURACY, LATENCY
from tests.support.study_factory import COST, ERROR, START, build_study

EPOCHS = 20


def forecast_at(trial: TrialRecord, epoch: int, *, mean: float, deviation: float, action: Action) -> DecisionRecord:
    cost = trial.epochs[epoch - 1].metrics["cost_usd"] * EPOCHS / epoch
    forecasts = {
        "val_error": Forecast(epochs=(9, EPOCHS), mean=(mean, mean), deviation=(deviation, deviation)),
        "cost_usd": Forecast(epochs=(9, EPOCHS), mean=(cost, cost), deviation=(0.0, 0.0)),
    }
    return DecisionRecord(epoch=epoch, action=action, reason="worth most", forecasts=forecasts)


def with_forecasts(study: StudyRecord, *, deviation: float = 0.02, shift: float = 0.0) -> StudyRecord:
    """Every trial was forecast at epoch 3: those that went on what they reached then, with an error of `shift`."""
    trials = []
    for trial in study.trials:
        if len(trial.epochs) >= 3:
            reached = trial.epochs[min(9, len(trial.epochs)) - 1].metrics["val_error"]
            action: Action = "continue" if len(trial.epochs) > 3 else "pause"
            made = forecast_at(trial, 3, mean=reached + shift, deviation=deviation, action=action)
            trials.append(replace(trial, decisions=(made, *trial.decisions)))
        else:
            trials.append(trial)
    return replace(study, trials=tuple(trials))


def traces(figure: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in figure["data"] if name in one["name"]]


@pytest.fixture(scope="module")
def study() -> StudyRecord:
    return with_forecasts(build_study(60))


def test_only_unfinished_trials_have_something_ahead(study: StudyRecord) -> None:
    for trial in study.started:
        expected = ahead(trial, "val_error")
        if trial.state in ("complete", "failed"):
            assert expected == []
        elif len(trial.epochs) == 3:
            assert [one.epoch for one in expected] == [9, EPOCHS]
            assert expected[0].low < expected[0].median < expected[0].high
        else:
            assert [one.epoch for one in expected] == [EPOCHS], "epoch 9 was measured since"


def test_bands_begin_where_the_curve_ends(study: StudyRecord) -> None:
    shown = curve_figures.chosen(study, analysis.archive(study))
    figure: Any = curve_figures.learning_curves(shown, ERROR)
    band, line = traces(figure, "forecast")
    assert band["fill"] == "toself"
    assert line["x"].count(None) == MOST_BANDS, "one for each of the most promising"
    assert line["x"][0] in (3, 9)
    first = next(t for t in study.started if f"trial {t.number}" == line["text"][0])
    assert line["y"][0] == pytest.approx(first.epochs[-1].metrics["val_error"], rel=1e-5)
    assert "expected" in line["text"][1]
    assert figure["data"][0] is band, "the curves lie on top"


def test_ends_are_drawn_of_trials_that_may_enter_the_archive_and_of_one_objective() -> None:
    promising = with_forecasts(build_study(60), shift=-0.3)
    figure: Any = figures.trade_off(promising, analysis.archive(promising))
    (trace,) = traces(figure, "expected at the last epoch")
    assert 0 < len(trace["x"]) <= MOST_ENDS
    assert trace["error_x"]["array"][0] == pytest.approx(0.02 * 1.28155, rel=1e-3)
    assert trace["error_y"]["array"] == [0.0] * len(trace["x"]), "what an epoch costs is known"
    hopeless = with_forecasts(build_study(60), shift=50.0, deviation=1e-6)
    cheap = replace(hopeless, objectives=(ERROR, Objective(metric="val_accuracy", direction="maximize")))
    assert not traces(figures.trade_off(cheap, analysis.archive(cheap)), "expected at the last epoch")  # type: ignore[arg-type]
    optimistic = replace(with_forecasts(build_study(60), shift=-1.0), objectives=(ERROR,))
    figure = figures.trade_off(optimistic, analysis.archive(optimistic))
    (trace,) = traces(figure, "expected at the last epoch")
    assert "error_x" not in trace
    assert all(isinstance(place, int) and 1 <= place <= 60 for place in trace["x"])
    assert "error_y" in trace


@pytest.mark.parametrize(
    ("deviation", "shift", "judged"),
    [(10.0, 0.0, "more cautious than they need be"), (1e-4, 1.0, "more certain than they should be")],
)
def test_a_sentence_says_whether_forecasts_came_true(deviation: float, shift: float, judged: str) -> None:
    found = with_forecasts(build_study(60), deviation=deviation, shift=shift)
    (line,) = calibration_lines(found)
    assert line.startswith("val_error: of ")
    assert "80 % interval" in line
    assert judged in line
    figure: Any = calibration(found)
    assert [one["name"] for one in figure["data"]] == ["as it should be", "val_error"]
    assert all(0 <= share <= 1 for share in figure["data"][1]["y"])
    page = render(found)
    assert "Whether forecasts came true" in page
    assert judged in page


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_few_trials_tell_nothing_of_the_certainty_of_forecasts(trials: int) -> None:
    """Values of one trial hang together: 1 of 12 inside the interval in one trial is no proof of anything."""
    for inside in (3 * trials, 12 * trials):
        quantiles = [0.5 if place < inside else 0.999 for place in range(12 * trials)]
        checks = [
            Checked(trial=place % trials, made_at=3, epoch=9, metric="val_error", quantile=quantile)
            for place, quantile in enumerate(quantiles)
        ]
        said = _judged(share_inside(checks, INTERVAL), trials)
        assert "about as certain" not in said
        assert trials > 1 or "too few trials to judge" in said


def test_forecasts_of_shares_end_where_shares_do_and_few_are_not_judged() -> None:
    assert interval("val_accuracy", 0.985, 0.9594, 1.011) == (0.9594, 1.0)
    assert interval("val_error", 0.002, -0.01, 0.014) == (0.0, 0.014)
    assert interval("val_mse", 0.5, -0.1, 1.5) == (-0.1, 1.5)
    assert interval("val_error", 1.2, 0.9, 1.5) == (0.9, 1.5), "no share"
    few = with_forecasts(build_study(2, states=("complete",)))
    assert sum(len(t.decisions) for t in few.trials) < FEWEST_CHECKS
    assert calibration(few) is None
    assert calibration_lines(few) == []
    assert "Whether forecasts came true" not in render(few)
    assert calibration(build_study(60, objectives=(ERROR, COST))) is None


def charge(kind: ChargeKind, trial: int | None, slots: tuple[int, ...], start: float, end: float) -> ChargeRecord:
    return ChargeRecord(
        kind=kind, trial=trial, attempt=None if trial is None else 1, slots=len(slots), seconds=end - start,
        usd_per_slot_hour=1.0, cost_nano_usd=1, charged_at=START + timedelta(seconds=end), slot_numbers=slots,
    )  # fmt: skip


def study_of(*charges: ChargeRecord, trials: int = 3) -> StudyRecord:
    return replace(build_study(trials, states=("complete",)), charges=charges)


def bars(study: StudyRecord) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """Start and end of the bars by device and kind, in the axis's unit."""
    figure: Any = timeline(study)
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for trace in figure["data"]:
        if trace["type"] == "bar":
            for slot, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True):
                found.setdefault((slot, trace["name"]), []).append((base, pytest.approx(base + length)))
    return found


def test_each_device_has_its_own_row_and_epochs_of_a_trial_are_one_bar() -> None:
    found = bars(
        study_of(
            charge("start", 0, (0, 1), 0, 2), charge("train", 0, (0, 1), 2, 6), charge("train", 0, (0, 1), 6, 10),
            charge("idle", None, (1,), 10, 20), charge("train", 1, (0,), 10, 20),
        )
    )  # fmt: skip
    assert found == {
        (0, "start"): [(0, 2)], (1, "start"): [(0, 2)], (0, "train"): [(2, 10), (10, 20)], (1, "train"): [(2, 10)],
        (1, "idle"): [(10, 20)],
    }  # fmt: skip


def test_time_without_a_pool_is_left_out_and_earlier_versions_say_nothing() -> None:
    study = study_of(charge("train", 0, (0,), 0, 100), charge("train", 1, (0,), 7300, 7400))
    assert [begin for begin, _ in bars(study)[0, "train"]] == pytest.approx([0, 100 / 60], rel=1e-4), "in minutes"
    figure: Any = timeline(study)
    assert "2 h later" in figure["layout"]["annotations"][0]["text"]
    assert "gaps left out" in figure["layout"]["xaxis"]["title"]["text"]
    study = build_study(6)
    unknown = replace(study, charges=tuple(replace(one, slot_numbers=()) for one in study.charges))
    assert timeline(unknown) is None
    assert "What each device did" not in render(unknown)
    assert "What each device did" in render(study)


def test_a_fault_is_a_mark_with_its_reason() -> None:
    study = study_of(charge("train", 0, (0, 1), 0, 10), charge("lost", 0, (0, 1), 10, 15))
    attempt = AttemptRecord(
        attempt=1, world_size=2, start_epoch=0, slots=(0, 1), outcome="lost", started_at=START,
        ended_at=START + timedelta(seconds=15),
    )  # fmt: skip
    trial = replace(study.trials[0], attempts=(attempt,), error="Traceback\nActorDiedError: <b>gone</b>")
    figure: Any = timeline(replace(study, trials=(trial, *study.trials[1:])))
    (fault,) = [trace for trace in figure["data"] if trace["name"] == "fault"]
    assert (fault["x"], fault["y"]) == ([15.0, 15.0], [0, 1])
    assert "lost" in fault["text"][0]
    assert "ActorDiedError: &lt;b&gt;gone" in fault["text"][0], "plotly would render the markup"
    assert "there was 1 fault" in timeline_line(replace(study, trials=(trial, *study.trials[1:])))


def test_a_long_study_is_divided_into_parts_that_add_up() -> None:
    charges = []
    for number in range(3 * MOST_BARS):
        charges += [charge("start", number, (0,), 10 * number, 10 * number + 2)]
        charges += [charge("train", number, (0,), 10 * number + 2, 10 * number + 10)]
    figure: Any = timeline(study_of(*charges))
    drawn = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert sum(len(trace["x"]) for trace in drawn) <= MOST_BARS
    assert sum(sum(trace["x"]) for trace in drawn) == pytest.approx(30 * MOST_BARS / 3600, rel=1e-3)
    assert "train 80 %" in drawn[0]["hovertext"][5]


def test_sentences_count_the_time_of_all_devices_in_full() -> None:
    study = study_of(
        charge("train", 0, (0, 1), 0, 30), charge("idle", None, (0,), 30, 60), charge("idle", None, (1,), 30, 40)
    )
    assert timeline_line(study).startswith(
        "Of 1 min 40 s of all devices together 60 % trained epochs that count and 40 % "
    )
    told = timeline_line(study_of(charge("train", 0, (0,), 0.0, 997.0), charge("idle", None, (0,), 997.0, 1000.0)))
    assert "100 % trained epochs that count and 0.3 % was idle" in told


def drawn_of(study: StudyRecord) -> str:
    return str(front_picture(trade_off(study, analysis.archive(study))))


@pytest.mark.parametrize("objectives", [(ERROR,), (ERROR, COST), (ERROR, COST, ACCURACY, LATENCY)])
def test_the_picture_has_a_dot_for_each_trial_and_a_diamond_for_each_kept_model(objectives: Sequence[Any]) -> None:
    study = build_study(30, objectives=tuple(objectives))
    drawn = drawn_of(study)
    assert drawn.count('class="dot"') == sum(1 for trial in study.started if trial.epochs)
    assert drawn.count('class="kept"') == len(analysis.archive(study))
    assert drawn.count('class="taken"') == 1
    assert drawn.count("<title>") >= drawn.count('class="dot"')
    assert "nan" not in drawn


def test_cheaper_models_have_larger_errors_and_stairs_show_what_lies_between() -> None:
    places = re.findall(r'class="kept" fill="\S+" d="M(\S+) (\S+?)m', drawn_of(build_study(30)))
    ups = [float(y) for _, y in sorted(places, key=lambda place: float(place[0]))]
    assert len(ups) > 1
    assert ups == sorted(ups), "it stands further down, where y is larger"
    # Left of a model whose first metric is to be small nothing is as good; right of one whose is to be large.
    plain = build_study(30)
    first, second = plain.objectives
    for direction, order in (("minimize", "H.*V"), ("maximize", "V.*H")):
        drawn = drawn_of(replace(plain, objectives=(replace(first, direction=direction), second)))
        steps = re.findall(r'class="stairs" stroke="\S+" d="M\S+ \S+?(?=[HV])([HV].*?)"', drawn)
        assert steps, direction
        assert all(re.match(order, one) for one in steps)


@pytest.mark.parametrize(("low", "high"), [(1e-200, 1e-150), (-1e308, 1e308), (5e-324, 5e-324), (0.0, 1e308)])
def test_values_of_any_size_are_drawn(low: float, high: float) -> None:
    study = build_study(6)
    first, second = (one.metric for one in study.objectives)
    study = replace(study, reference_point={first: 1.0, second: 1.0})
    epochs = [
        tuple(replace(one, metrics={**one.metrics, first: high if number % 2 else low}) for one in trial.epochs)
        for number, trial in enumerate(study.trials)
    ]
    study = replace(study, trials=tuple(replace(t, epochs=e) for t, e in zip(study.trials, epochs, strict=True)))
    drawn = drawn_of(study)
    assert 'class="dot"' in drawn
    assert "nan" not in drawn
    assert "inf" not in drawn


@pytest.mark.medium
def test_of_many_trials_a_sample_is_drawn_and_of_none_nothing() -> None:
    study = build_study(1200, states=("complete",))
    assert drawn_of(study).count('class="dot"') == 500
    study = build_study(1)
    bare = replace(study, trials=tuple(replace(one, epochs=()) for one in study.trials))
    assert not drawn_of(bare)


def test_a_report_shows_it_where_no_script_may_run_and_the_chart_takes_its_place(browser: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    write_report(build_study(30), report)
    still = browser.new_page(java_script_enabled=False)
    still.goto(report.as_uri())
    assert still.locator("#trade-off svg.front").is_visible()
    assert still.locator("#trade-off .dot").count() > 10
    first, second = (one.metric for one in build_study(1).objectives)
    assert f"{first} across, {second} up" in str(still.locator("#trade-off svg").get_attribute("aria-label"))
    assert still.get_by_text("diamonds are the best models").is_visible()
    still.close()
    page = browser.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("#trade-off .main-svg")
    assert page.locator("#trade-off .still").count() == 0
    page.close()
