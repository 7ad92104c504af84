"""A study in Python: tables, figures, the best point, and what a notebook shows of it."""

import csv
import io
import sys
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from automl.api import DataFrameError, Study, dataframe
from automl.notebook_cell import ReportLink, progress_cell, report_link, study_cell
from reports.figures import as_plotly
from reports.gallery import FigureError, Gallery, figures_of_page
from reports.page import render
from reports.recommending import recommendation_lines
from studies.records.plain_rows import TABLES, to_csv
from studies.records.records import NANO, Constraint, Objective
from studies.results import analysis
from studies.results.recommendation import BestPointError, best_point
from tests.reports.test_page import EVIL, data_of, hostile, read, unusual
from tests.support.stored_study import StoredStudy
from tests.support.study_factory import COST, ERROR, build_study

ACCURACY = Objective(metric="val_accuracy", direction="maximize")


@pytest.mark.parametrize("name", unusual())
def test_trials_have_the_columns_and_values_of_the_csv(name: str) -> None:
    record = unusual()[name]
    table = dataframe(record, "trials")
    lines = list(csv.reader(io.StringIO(to_csv(analysis.trial_rows(record)))))
    assert list(table.columns) == lines[0]
    shown = [["" if pd.isna(value) else str(value) for value in row] for row in table.itertuples(index=False)]
    assert shown == lines[1:]


def test_an_inactive_whole_number_does_not_make_floats_of_the_others() -> None:
    record = build_study(12)
    trials = tuple(
        replace(t, params={**t.params, "layers": 3, "bias": True} if t.number else t.params) for t in record.trials
    )
    table = dataframe(replace(record, trials=trials), "trials")
    assert [str(table[f"params.{name}"].dtype) for name in ("layers", "bias", "width")] == ["Int64", "boolean", "int64"]
    assert table["params.layers"].isna().tolist() == [True] + [False] * 11


def test_epochs_and_charges_add_up() -> None:
    record = build_study(40)
    trials, epochs, charges = (dataframe(record, what) for what in ("trials", "epochs", "charges"))
    assert len(epochs) == trials["epochs"].sum()
    assert not epochs.duplicated(["trial", "epoch"]).any()
    last = epochs.groupby("trial").last()
    assert last["metrics.val_error"].tolist() == trials.loc[trials["epochs"] > 0, "values.val_error"].tolist()
    own = charges[charges["kind"].isin(["start", "train"])].groupby("trial")["cost_usd"].sum()
    assert own.tolist() == pytest.approx(trials["cost_usd"].tolist(), rel=1e-12)
    assert charges["cost_usd"].sum() == pytest.approx(record.cost_nano_usd / NANO, rel=1e-12)
    train = charges[charges["kind"] == "train"]["cost_usd"].sum()
    assert epochs["cost_usd"].sum() == pytest.approx(train, rel=1e-12)
    assert (charges["slots"] * charges["seconds"] * charges["usd_per_slot_hour"] / 3600).sum() == pytest.approx(
        record.cost_nano_usd / NANO, rel=1e-6
    )
    assert charges["trial"].isna().sum() == (charges["kind"] == "idle").sum()
    assert str(charges["charged_at"].dt.tz) == str(epochs["measured_at"].dt.tz) == str(UTC)


@pytest.mark.parametrize("what", TABLES)
def test_a_study_without_trials_has_tables_without_rows(what: str) -> None:
    table = dataframe(build_study(0, state="running", stop_reason=None, ended_at=None), what)
    assert len(table) == 0
    assert list(table.columns) == list(TABLES[what].columns)


def test_an_unknown_table_and_a_missing_pandas_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataFrameError) as refused:
        dataframe(build_study(1), "trails")
    assert str(refused.value) == "dataframe: found 'trails', allowed: trials, epochs, charges; did you mean 'trials'?"
    monkeypatch.setitem(sys.modules, "pandas", None)
    needs = r"^dataframe needs the package pandas. Install it: pip install .*\[pandas\]' in the checkout$"
    with pytest.raises(DataFrameError, match=needs):
        dataframe(build_study(1), "trials")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["empty", "paused", "five"])
def test_figures_are_those_of_the_page(name: str) -> None:
    record = unusual()[name]
    gallery = Gallery(record)
    drawn = [gallery[figure].to_plotly_json()["data"] for figure in gallery if figure.count(".") != 1]
    dotted = ("curves.", "surface.", "parallel.")
    curves = [gallery[figure].to_plotly_json()["data"] for figure in gallery if figure.startswith(dotted)]
    of_page = [as_plotly(figure).to_plotly_json()["data"] for figure in data_of(render(record)).values()]
    ours, theirs = (sorted(str(plain(data)) for data in some if data) for some in ([*drawn, *curves], of_page))
    assert ours == theirs
    assert all(gallery[figure].layout.title.text for figure in gallery)
    assert all(gallery[figure].layout.height - gallery[figure].layout.margin.t >= 88 for figure in gallery)


def plain(value: Any) -> Any:
    """Plotly's data with its tuples as lists."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in sorted(value.items())} if isinstance(value, dict) else value


def test_bars_of_spending_are_those_of_the_page() -> None:
    record = build_study(40)
    gallery, page = Gallery(record), " ".join("".join(read(render(record)).text).split())
    assert {"spending.kind", "spending.outcome", "importance.val_error", "importance.cost_usd"} <= set(gallery)
    for name in ("spending.kind", "importance.val_error"):
        (bars,) = gallery[name].data
        assert len(bars.x) > 1
        assert all(str(text).split(" (")[0] in page for text in bars.text)


@pytest.mark.medium
def test_figures_hide_passwords_and_name_what_there_is() -> None:
    gallery = Gallery(hostile())
    texts = "".join(gallery[name].to_json() for name in gallery)
    assert "secret-word" not in texts
    assert "<script" not in texts
    with pytest.raises(FigureError, match=r"^figures: found 'trade-off', allowed: trade_off, .*mean 'trade_off'"):
        gallery["trade-off"]
    with pytest.raises(KeyError, match="none yet"):
        Gallery(build_study(0, charges=()))["trade_off"]
    assert figures_of_page(build_study(0), []) == {}


def test_the_best_point_respects_direction_bounds_and_ties() -> None:
    record = build_study(60, objectives=(ACCURACY, COST))
    archive = analysis.archive(record)
    best = best_point(record, "val_accuracy")
    assert best.values["val_accuracy"] == max(point.values["val_accuracy"] for point in archive)
    middle = sorted(point.values["cost_usd"] for point in archive)[len(archive) // 2]
    bounded = best_point(record, "val_accuracy", under={"cost_usd": middle})
    assert bounded.values["cost_usd"] <= middle
    assert bounded.values["val_accuracy"] == max(
        point.values["val_accuracy"] for point in archive if point.values["cost_usd"] <= middle
    )
    cheap = best_point(record, "cost_usd", over={"val_accuracy": bounded.values["val_accuracy"]})
    assert (cheap.trial, cheap.epoch) == (bounded.trial, bounded.epoch), "a bound itself is allowed"
    trial = record.started[best.trial]
    assert (best.params, best.state) == (trial.params, trial.state)
    assert best.metrics == trial.epochs[best.epoch - 1].metrics
    assert best.checkpoint == trial.epochs[best.epoch - 1].checkpoint


def test_the_best_point_keeps_the_constraints_of_the_spec() -> None:
    record = build_study(60)
    free = best_point(record, "val_error")
    limit = free.metrics["latency_ms"] * 0.9
    kept = best_point(replace(record, constraints=(Constraint(metric="latency_ms", max=limit),)), "val_error")
    assert kept.metrics["latency_ms"] <= limit < free.metrics["latency_ms"]
    assert kept.values["val_error"] > free.values["val_error"]


@pytest.mark.parametrize(
    ("metric", "bounds", "words"),
    [
        ("val_eror", {}, "metric: found 'val_eror', allowed: the objectives val_error, cost_usd, .*mean 'val_error'"),
        ("latency_ms", {}, "metric: found 'latency_ms', allowed: the objectives"),
        ("val_error", {"under": {"cost": 1}}, "under: found 'cost', allowed: the objectives .*mean 'cost_usd'"),
        ("val_error", {"over": {"cost_usd": 1}}, r"over: found 'cost_usd', which is minimized, allowed: under="),
        ("val_error", {"under": {"val_accuracy": 1}}, "which is maximized, allowed: over="),
        ("val_error", {"under": {"cost_usd": "1"}}, "under.cost_usd: found '1', allowed: a number"),
        ("val_error", {"under": {"cost_usd": float("nan")}}, "under.cost_usd: found nan, allowed: a number"),
        ("val_error", {"under": 3}, "under: found 3, allowed: a mapping"),
        ("val_error", {"under": {"cost_usd": 1e-9}}, r"keeps cost_usd at most 1e-09; the nearest is \d+@\d+ with"),
        (
            "val_error",
            {"under": {"cost_usd": 9}, "over": {"val_accuracy": 2}},
            "at least 2 and the bounds on cost_usd; ",
        ),
    ],
)
def test_what_no_point_can_be_is_told_in_one_line(metric: str, bounds: dict[str, Any], words: str) -> None:
    with pytest.raises(BestPointError, match=words) as refused:
        best_point(build_study(40, objectives=(ERROR, COST, ACCURACY)), metric, **bounds)
    assert "\n" not in str(refused.value)


def test_an_empty_archive_has_no_best_point() -> None:
    with pytest.raises(BestPointError, match="digits has no saved model yet"):
        best_point(build_study(0), "val_error")


@pytest.mark.parametrize("name", unusual())
def test_a_cell_shows_any_study_in_the_colours_of_its_notebook(name: str) -> None:
    cell = study_cell(unusual()[name])
    assert "background: #" not in cell
    assert "color: #" not in cell
    assert "<style" not in cell, "it would hold for the whole notebook"
    tags = {"div", "p", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "code", "a"}
    assert {tag for tag, _ in read(cell).tags} <= tags


def test_a_cell_escapes_what_users_wrote() -> None:
    record = hostile()
    record = replace(record, error=EVIL, constraints=(Constraint(metric=EVIL, max=1.0),))
    cell = study_cell(record, ReportLink(text=EVIL, href='"onclick="alert(1)'))
    cell += progress_cell({EVIL: EVIL}, [EVIL, "\x1b[31m"])
    assert not {tag for tag, _ in read(cell).tags} & {"script", "img"}
    assert not [name for _, attributes in read(cell).tags for name in attributes if name.startswith("on")]
    assert "secret-word" not in cell
    assert "\x1b" not in cell
    assert EVIL in "".join(read(cell).text)


def test_a_study_of_a_store_shows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredStudy(tmp_path)
    stored.trial(epochs=3, checkpoints=(3,), state="complete", cost_nano_usd=NANO // 50)
    study = Study(stored.store, "small")
    assert "report.html" not in study._repr_html_(), "there is none yet"
    study.report.parent.mkdir(parents=True)
    study.report.write_text("a page")
    monkeypatch.chdir(tmp_path)
    shown = study._repr_html_()
    assert 'href="artifacts/small/report.html"' in shown
    assert str(tmp_path) not in shown
    assert "0@3" in shown
    monkeypatch.chdir(tmp_path.parent)
    assert f'href="{tmp_path.name}/artifacts/' in study._repr_html_()
    monkeypatch.chdir("/")
    assert repr(study) == "<study small: running, 1 trials>"
    assert str(study).splitlines()[0] == "study small: running, 1 trials"
    assert str(study).splitlines()[1:] == recommendation_lines(study.record)
    assert study.best("val_error").values == {"val_error": 0.25}
    assert study.dataframe("charges")["cost_usd"].sum() == pytest.approx(0.02)
    assert "trade_off" in study.figures


def test_a_report_outside_the_folder_of_the_notebook_is_named_without_a_link(tmp_path: Path) -> None:
    assert report_link(tmp_path / "a b" / "report.html", tmp_path).href == "a%20b/report.html"
    outside = report_link(tmp_path / "report.html", tmp_path / "inner")
    assert (outside.text, outside.href) == (str(tmp_path / "report.html"), "")
