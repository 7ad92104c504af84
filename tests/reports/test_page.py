"""The page: what it says, what is escaped, how it works in a browser, and that everybody can read it."""

import html
import html.parser
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports import content, curve_figures, figures
from reports.comparing import write_comparison
from reports.page import FIRST_ROWS, MOST_ROWS, as_json, plotly_script, render, write_report
from reports.page_templates import packed, unpacked
from reports.parameter_figures import parameter_names, parameter_panel
from reports.phrases import NOTHING, count, deviation, duration, listed, metric, number, percent, usd
from reports.plotting import objective_axis, titled
from studies.records.records import DecisionRecord, Objective, StudyRecord
from studies.results import analysis
from studies.spec.study_spec import parse_spec
from tests.support import optional
from tests.support.study_factory import COST, ERROR, START, build_study

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
EVIL_LABEL = '<a href="https://evil.example/">free</a> %{x} <b>bold</b>'
ACCURACY = Objective(metric="val_accuracy", direction="maximize")
PARAMETERS, LATENCY = Objective(metric="model_parameters"), Objective(metric="latency_ms")
FOUR = (ACCURACY, COST, PARAMETERS, LATENCY)


def hostile() -> StudyRecord:
    """A study in which every text that a user can choose tries to become markup, and a URL holds a password."""
    objective = Objective(metric=EVIL_LABEL)
    study = build_study(30, objectives=(objective, COST))
    trials = []
    for t in study.trials:
        epochs = tuple(replace(e, metrics={**e.metrics, EVIL_LABEL: e.metrics["val_error"]}) for e in t.epochs)
        params = {**t.params, EVIL: EVIL, "note": "{{ 7 * 7 }} <!-- ", "url": "https://me:secret-word@host/"}
        reason = f"{EVIL} at postgresql://me:secret-word@db/x"
        trials.append(replace(t, epochs=epochs, params=params, reason=reason))
    spec = {**study.spec, "task_options": {EVIL: [EVIL, "postgresql://me:secret-word@db/x"]}}
    return replace(study, name=EVIL, spec=spec, trials=tuple(trials), reference_point=None)


def unusual() -> dict[str, StudyRecord]:
    """Studies of every number of objectives, and in states in which something is missing."""
    sixty = build_study(60)
    nan = tuple(replace(e, metrics={**e.metrics, "val_error": math.nan}) for e in sixty.trials[0].epochs)
    broken = tuple(replace(t, epochs=nan, state="failed", failure="diverged") for t in sixty.trials[:9])
    paused = build_study(12, states=("complete", "paused"), state="drained", stop_reason="interrupted")
    last = paused.trials[-1]
    mark = DecisionRecord(epoch=2, action="pause", reason="another promises more")
    thawed = (*paused.trials[:-1], replace(last, decisions=(mark, *last.decisions)))
    return {
        "empty": build_study(0, state="running", stop_reason=None, ended_at=None),
        "started": build_study(1, epochs=1, state="running", stop_reason=None, ended_at=None, states=("running",)),
        "no epochs": replace(sixty, trials=tuple(replace(t, epochs=(), attempts=()) for t in sixty.trials[:3])),
        "all diverged": replace(sixty, trials=broken),
        "paused": replace(paused, trials=thawed),
        "one": build_study(20, objectives=(ERROR,)),
        "one maximised": build_study(20, objectives=(ACCURACY,)),
        "two": sixty,
        "two maximised": build_study(20, objectives=(ACCURACY, COST)),
        "three": build_study(20, objectives=FOUR[:3]),
        "four": build_study(20, objectives=FOUR),
        "five": build_study(20, objectives=(*FOUR, ERROR)),
    }


class Reader(html.parser.HTMLParser):
    """Collects tags, executable scripts and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@cache
def page_of_sixty() -> str:
    """The page of the usual study, which several tests read."""
    return render(build_study(60))


def data_of(page: str) -> dict[str, Any]:
    """The figures that a page embeds."""
    text = unpacked_part(page, "data")
    return dict(json.loads(text)) if text else {}


def unpacked_part(page: str, name: str) -> str:
    """A compressed part of a page as text; empty if the page has none."""
    found = re.search(rf'<script type="application/octet-stream" id="{name}" data-size="\d+">(.*?)</script>', page)
    return unpacked(found[1]) if found else ""


@pytest.mark.medium
@pytest.mark.parametrize("study", [pytest.param(study, id=name) for name, study in unusual().items()])
def test_every_study_gets_a_page_and_plotly_accepts_its_figures(study: StudyRecord) -> None:
    page = render(study)
    assert "Infinity" not in json.dumps(data_of(page))
    for figure in data_of(page).values():
        figures.as_plotly(figure)
    ids = [a["id"] for tag, a in read(page).tags if tag == "div" and "figure" in str(a.get("class"))]
    assert sorted(map(str, ids)) == sorted(data_of(page))


def test_the_page_says_what_was_found_when_and_what_it_cost() -> None:
    study = build_study(60)
    text = " ".join("".join(read(page_of_sixty()).text).split())
    best = min(analysis.archive(study), key=lambda p: p.values["val_error"])
    assert f"Lowest val_error: {percent(best.values['val_error'])} (trial {best.trial} after epoch {best.epoch}" in text
    assert f"automl export digits {best.trial}@{best.epoch} --out model" in text
    assert "model.pt" not in text
    assert usd(study.cost_nano_usd / 1e9) in text
    assert "the dollars of its budget are used up" in text
    assert "mid-schedule" in text
    assert f"created\n    {START:%Y-%m-%d %H:%M} UTC" in render(build_study(1))


@pytest.mark.parametrize(
    ("facts", "training", "follows"),
    [
        ({"samples": 60000}, {}, True),
        ({"samples": 60000}, {"schedule": "constant"}, False),
        ({"samples": 0}, {}, False),  # a stream without end, or a command
        ({"samples": 0}, {"samples_per_epoch": 1000}, True),  # a stream of which each epoch takes so many
        ({"samples": 0, "models": []}, {"samples_per_epoch": 1000}, False),  # a training function
    ],
)
def test_models_of_those_who_follow_the_schedule_are_early(facts, training, follows) -> None:
    study = build_study(20)
    attempts = [[replace(one, facts={**one.facts, **facts}) for one in trial.attempts] for trial in study.trials]
    trials = [replace(trial, attempts=own) for trial, own in zip(study.trials, attempts, strict=True)]
    training = {**study.spec["training"], "samples_per_epoch": "auto", **training}  # type: ignore[dict-item]
    page = render(replace(study, trials=trials, spec={**study.spec, "training": training}))
    assert ("mid-schedule" in page) == follows


@pytest.mark.medium
def test_states_and_ends_are_said_in_words() -> None:
    study = build_study(9, state="running", stop_reason=None, ended_at=None)
    assert "It is running." in render(replace(study, driven=True))
    assert "It is running, but its controller has died; <code>automl resume digits</code> continues it." in render(
        study
    )
    study = build_study(9)
    closed = tuple(replace(t, reason="closed", state="pruned") for t in study.trials)
    assert "when the study closed; more budget reopens it" in render(replace(study, trials=closed))


def test_every_trial_is_in_the_table_with_its_rates_and_world_size_sorted_as_numbers() -> None:
    page = page_of_sixty()
    assert page.count("<tr data-state=") == 60
    assert all(f">{head}</button>" in page for head in ("effective batch", "base rate", "scaled rate", "world_size"))
    assert ">workers</button>" not in page
    study = build_study(9)
    trials = tuple(replace(t, params={n: v for n, v in t.params.items() if n != "world_size"}) for t in study.trials)
    heads, rows = content.trial_table(replace(study, trials=trials))
    column = [name for name, _ in heads].index("workers")
    assert [row[column].text for row in rows] == [str(t.world_size) for t in trials]
    assert all(len(row) == len(heads) for row in rows)
    study = build_study(9)
    trials = tuple(replace(t, params={**t.params, "mixup": (t.number or 0) % 2 == 0}) for t in study.trials)
    heads, rows = content.trial_table(replace(study, trials=trials))
    numeric = {name for name, is_numeric in heads if is_numeric}
    assert "mixup" not in numeric, "True and False are no numbers for a browser"
    assert "learning_rate" in numeric
    cells = [(name, row[column]) for row in rows for column, (name, _) in enumerate(heads) if name in numeric]
    assert all(cell.numeric for _, cell in cells)


def test_the_spec_of_the_page_can_be_launched_and_nothing_is_loaded_from_elsewhere() -> None:
    study = build_study(1)
    found = re.search(r"<pre [^>]*><code>(.*?)</code></pre>", render(study), re.DOTALL)
    assert found
    assert parse_spec(yaml.safe_load(html.unescape(found[1]))).study == study.name
    page = render(build_study(20))
    linked = [a.get(name) for _, a in read(page).tags for name in ("src", "href") if a.get(name)]
    assert all(str(link).startswith(("#", "data:")) for link in linked)
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.medium
def test_texts_of_users_never_become_markup_and_passwords_are_hidden() -> None:
    page = render(hostile())
    reader = read(page)
    kinds = [a.get("type") for tag, a in reader.tags if tag == "script"]
    assert kinds == ["application/octet-stream", "application/octet-stream", None]
    assert not [tag for tag, _ in reader.tags if tag in ("img", "iframe", "object")]
    assert not [a for _, a in reader.tags if any(name.startswith("on") for name in a)]
    assert "alert(1)" in "".join(reader.text)
    assert "{{ 7 * 7 }}" in "".join(reader.text)
    text = json.dumps(data_of(page))
    assert "<script" not in text
    assert "<a href" not in text
    assert "<img" not in text
    assert "&lt;a href" in text
    templates = re.findall(r'"hovertemplate": "(.*?)"', text)
    assert templates
    assert not [t for t in templates if "%{x} &lt;b" in t]
    assert "secret-word" not in page + unpacked_part(page, "data")
    assert "***@" in page
    assert "***@" in unpacked_part(page, "data")


@pytest.mark.parametrize("length", range(6))
def test_packed_text_cannot_end_its_element_and_comes_back(length: int) -> None:
    given = as_json({"a": "</script><!-- &amp; \u2028", "n": math.nan, "more": "x" * length})
    found = packed(given)
    assert not set(found.text) & set("<>& \n")
    assert unpacked(found.text) == given
    assert json.loads(given)["n"] is None


def test_write_report_replaces_the_file_at_once(tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    assert write_report(build_study(3), out) == out
    first = out.read_text(encoding="utf-8")
    broken = replace(build_study(3), spec={"training": 3}, state="unheard of")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        write_report(broken, out)
    assert out.read_text(encoding="utf-8") == first
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


@pytest.mark.medium
def test_pages_stay_small_and_rows_beyond_the_first_are_packed() -> None:
    assert len(page_of_sixty().encode()) < 2e6
    page = render(build_study(MOST_ROWS + 5, objectives=FOUR))
    assert len(page.encode()) < 8e6
    assert page.count("<tr data-state=") == FIRST_ROWS
    rows = json.loads(unpacked_part(page, "rows"))
    assert [row[0][0] for row in rows] == [str(FIRST_ROWS + i) for i in range(MOST_ROWS + 5 - FIRST_ROWS)]
    assert f"Show the other {len(rows)} trials" in page
    assert "Show the other" not in render(build_study(FIRST_ROWS + 5))


def test_at_most_two_hundred_curves_of_learned_objectives_are_drawn() -> None:
    study = build_study(400)
    archive = analysis.archive(study)
    drawn = {t.number for t in curve_figures.chosen(study, archive)}
    assert len(drawn) == curve_figures.MOST_CURVES
    assert {p.trial for p in archive} <= drawn
    study = build_study(20, objectives=(*FOUR, ERROR))
    assert [o.metric for o in curve_figures.learned(study)] == ["val_accuracy", "val_error"]


def test_panels_have_the_scale_and_the_order_of_the_space() -> None:
    study = build_study(20)
    panels = {name: parameter_panel(study, name, ERROR) for name in parameter_names(study)}
    axes: dict[str, Any] = {name: panel["layout"]["xaxis"] for name, panel in panels.items()}  # type: ignore[index]
    logarithmic = [name for name, axis in axes.items() if axis.get("type") == "log"]
    assert logarithmic == ["learning_rate", "batch_per_rank", "width"]
    assert axes["optimizer"]["ticktext"] == ["sgd", "adamw"]
    study = build_study(20)
    sizes = {"type": "categorical", "choices": [1, 2, 16, 4]}
    space = {**study.spec["space"], "world_size": sizes}  # type: ignore[dict-item]
    panel: Any = parameter_panel(replace(study, spec={**study.spec, "space": space}), "world_size", ERROR)
    assert panel["layout"]["xaxis"]["ticktext"] == ["1", "2", "16", "4"]
    assert {round(x) for trace in panel["data"] for x in trace["x"]} == {0, 1}


@pytest.mark.medium
def test_every_dollar_and_every_failure_is_counted() -> None:
    study = build_study(60)
    assert [sum(bar.share for bar in some) > 0 for some in figures.money_bars(study)] == [True, True]
    assert f"adds up to {usd(study.cost_nano_usd / 1e9)}" in page_of_sixty()
    for totals in (analysis.money_by_kind(study), analysis.money_by_outcome(study)):
        assert sum(totals.values()) == pytest.approx(study.cost_nano_usd / 1e9)
    failed = [t for t in study.trials if t.state == "failed"]
    (row,) = content.failure_rows(study)
    assert row.count == f"{len(failed)} trials"
    assert row.command == f"automl explain digits {failed[0].number}"
    assert row.command in page_of_sixty()
    assert "What failed" not in render(build_study(12, states=("complete", "pruned")))


def test_ticks_of_dollars_are_dollars_and_staircases_turn_with_the_direction() -> None:
    axis: Any = objective_axis(COST, [2e-6, 4e-5])
    assert axis["type"] == "log"
    assert "$0.000003" in axis["ticktext"]
    assert "$0.00001" in axis["ticktext"]
    for objectives, shape in (((ERROR, COST), "hv"), ((ACCURACY, COST), "vh")):
        study = build_study(30, objectives=objectives)
        data: Any = figures.trade_off(study, analysis.archive(study))["data"]
        assert [t["line"]["shape"] for t in data if t["name"] == figures.BEST_MODELS] == [shape]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (usd(0), "$0"), (usd(1234.5), "$1,234.50"), (usd(0.0123456), "$0.0123"), (usd(-0.5), "-$0.50"),
        (usd(0.05), "$0.05"), (usd(0.00057), "$0.00057"), (usd(0.00000542), "$0.00000542"), (usd(1e-9), "$1e-9"),
        (usd(math.nan), NOTHING), (duration(0.036), "36 ms"), (duration(0.0), "0.0 s"), (duration(0.44), "0.4 s"),
        (duration(59.6), "1 min"), (duration(7500), "2 h 5 min"), (duration(90000), "1 d 1 h"),
        (number(12345.6), "12,346"), (number(99.7, 2), "100"), (number(-99.7, 2), "-100"), (number(999.7, 3), "1,000"),
        (number(9999.97), "10,000"), (metric("latency_ms", 999.7), "1,000 ms"), (duration(0.0994), "99 ms"),
        (number(0.00001234), "1.23e-5"), (number(1234567), "1,234,567"), (number(math.inf), "not finite"),
        (number(True), "True"), (metric("cost_usd", 0.5), "$0.50"), (metric("model_parameters", 2.6272e9), "2,627 M"),
        (metric("model_parameters", 78090), "78,090"), (count(1.2345e6), "1.23 M"), (metric("latency_ms", 2.0), "2 ms"),
        (metric("peak_memory_bytes", 3.21e9), "3.21 GB"), (metric("val_error", 0.01234), "1.23 %"),
        (metric("val_accuracy", 0.98765), "98.77 %"), (metric("val_error", 17.0), "17"),
        (metric("val_squared_error", 0.1328), "0.1328"), (metric("mean_absolute_error", 0.35), "0.35"),
        (metric("val/mean-squared-error", 0.35), "0.35"), (metric("RMSE_error", 0.35), "0.35"),
        (metric("class_mae_error", 0.35), "0.35"), (metric("resquared_error", 0.35), "35 %"),
        (deviation("val_error", 0.0141, 0.04), "1.41 %"), (deviation("val_error", 1.2, 0.9), "120 %"),
        (deviation("val_error", 0.3, 1.2), "0.3"), (deviation("val_squared_error", 0.3, 0.5), "0.3"),
        (deviation("val_error", math.nan, 0.5), "not finite"), (deviation("cost_usd", 0.3, 1.2), "$0.30"),
        (metric("val_error", math.nan), "not finite"), (percent(0.000512), "0.0512 %"), (percent(0), "0 %"),
        (percent(1), "100 %"), (listed(["a"]), "a"), (listed(["a", "b", "c"]), "a, b and c"),
    ],
)  # fmt: skip
def test_wording(found: str, expected: str) -> None:
    assert found == expected


def opened(page: Any, study: StudyRecord, folder: Path) -> list[str]:
    """The page in a browser without network, scrolled to its end, and all that went wrong."""
    out = write_report(study, folder / "report.html")
    troubles: list[str] = []
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.on("dialog", lambda d: (troubles.append(f"dialog {d.message}"), d.dismiss()))
    page.on("request", lambda r: troubles.append(r.url) if r.url.startswith("http") else None)
    page.context.set_offline(True)
    page.goto(out.as_uri())
    for panel in page.query_selector_all(".figure"):
        if panel.is_visible():
            panel.evaluate("box => box.scrollIntoView({behavior: 'instant'})")  # a smooth scroll moves while drawing
            page.wait_for_function("box => box.querySelector('.main-svg')", arg=panel)
    return troubles


def test_in_a_browser_without_network(page: Any, tmp_path: Path) -> None:
    troubles = opened(page, build_study(60), tmp_path)
    rows = "#trials tbody tr:not([hidden])"
    assert page.locator(rows).count() == 60
    page.fill("#search", "adamw complete")
    assert 0 < page.locator(rows).count() < 60
    page.fill("#search", "")
    page.click("#chips button >> text=pruned")
    assert page.locator(f"{rows}[data-state=pruned]").count() == 0
    page.click("#trials th button >> text=val_error")
    values = page.locator(f"{rows} td:nth-child(3)").evaluate_all(
        "cells => cells.map(cell => Number(cell.dataset.sort))"
    )
    assert values == sorted(values)
    page.click(".tabs button >> text=cost_usd")
    page.locator("#parameter-1-0").evaluate("box => box.scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector("#parameter-1-0 .main-svg")
    assert troubles == []


@pytest.mark.medium
@pytest.mark.parametrize("name", ["empty", "all diverged", "one", pytest.param("four", marks=pytest.mark.slow)])
def test_unusual_studies_in_a_browser(page: Any, tmp_path: Path, name: str) -> None:
    troubles = opened(page, unusual()[name], tmp_path)
    assert troubles == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_hostile_texts_in_a_browser(page: Any, tmp_path: Path) -> None:
    troubles = opened(page, hostile(), tmp_path)
    page.locator("#picker input").first.fill("1000")
    assert "<a href" in page.inner_text("#picked")
    assert page.locator("#picker a, #picker img, #picker b b").count() == 0
    assert troubles == []
    assert page.locator("a[href*='evil']").count() == 0
    assert page.locator("svg a").count() == 0
    assert page.locator(".xtitle >> text=<a href").count() > 0


DRAWN = "() => [...document.querySelectorAll('.figure')].filter(box => box.querySelector('.main-svg')).length"
ALL_DRAWN = (
    "() => [...document.querySelectorAll('.figure')]"
    ".every(box => box.closest('[hidden]') || box.querySelector('.main-svg'))"
)
TO_DRAW = "() => [...document.querySelectorAll('.figure')].filter(box => !box.closest('[hidden]')).length"


def test_charts_are_drawn_when_they_come_near_and_all_when_printing(page: Any, tmp_path: Path) -> None:
    page.goto(write_report(build_study(60), tmp_path / "report.html").as_uri())
    page.wait_for_selector("#trade-off .main-svg")
    page.wait_for_timeout(500)
    assert page.evaluate(DRAWN) < page.evaluate(TO_DRAW), "those far below cost nothing"
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(DRAWN) == page.evaluate(TO_DRAW)


def test_a_chart_is_drawn_in_a_turn_of_its_own(browser: Any, tmp_path: Path) -> None:
    """Else a row of panels that comes into view at once would stop the page."""
    page = browser.new_page(viewport={"width": 1280, "height": 20_000})
    page.add_init_script(
        "window.turns = [];"
        "const later = window.setTimeout;"
        "window.setTimeout = (task, ...rest) => later(() => { turns.push(0); task(); }, ...rest);"
        "let plotly; Object.defineProperty(window, 'Plotly', { get: () => plotly, set(given) {"
        "  plotly = { ...given, react: (...a) => { turns[turns.length - 1] += 1; return given.react(...a); } }; } });"
    )
    page.goto(write_report(build_study(12), tmp_path / "report.html").as_uri())
    page.wait_for_function(ALL_DRAWN)
    turns = [count for count in page.evaluate("turns") if count]
    assert turns == [1] * page.evaluate(TO_DRAW)
    page.close()


def test_a_browser_that_does_not_watch_draws_everything(page: Any, tmp_path: Path) -> None:
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.add_init_script("delete window.IntersectionObserver")
    page.goto(write_report(build_study(60), tmp_path / "report.html").as_uri())
    page.wait_for_function(ALL_DRAWN)
    page.click(".tabs button >> text=cost_usd")
    page.wait_for_selector("#parameter-1-0 .main-svg")
    assert "60 of 60 shown" in page.inner_text("#count"), "the table of trials works, too"
    assert troubles == []


def test_the_title_of_a_figure_lies_above_its_legend(page: Any, tmp_path: Path) -> None:
    """Optuna Dashboard draws the learning curves in cards of some 420 pixels."""
    study = build_study(60)
    plain = curve_figures.learning_curves(study.started, study.objectives[0])
    drawn = json.dumps(titled(plain, f"{study.objectives[0].metric} by epoch"))
    script = f"<script>{plotly_script()}</script><script>Plotly.newPlot('card', {drawn})</script>"
    (tmp_path / "card.html").write_text(f'<meta charset="utf-8"><div id="card" style="width: 420px"></div>{script}')
    page.goto((tmp_path / "card.html").as_uri())
    title, legend = (page.locator(name).first.bounding_box() for name in (".gtitle", ".legend"))
    assert title["y"] >= 0
    assert title["y"] + title["height"] <= legend["y"]


NO_SERIOUS = ("serious", "critical")
PRINTED = "() => { window.dispatchEvent(new Event('beforeprint')); return document.querySelector('.main-svg'); }"


def opened_at(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light", **more: Any) -> Any:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_function(PRINTED)  # on a telephone the first chart may be far below
    return page


@pytest.mark.large
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_everybody_can_read_and_work_a_page(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    study = build_study(20)
    report = write_report(study, tmp_path / "report.html")
    page = opened_at(browser, report, width=width, scheme=scheme, bypass_csp=True)  # axe is put into the page
    if width == 400:
        check_the_commands_are_in_sight(page)
    page.locator("#picker input").first.fill("0.01")
    check_by_axe(page)
    if width == 400:
        check_what_is_printed(page)
    else:
        check_what_keys_reach(page)
    page.context.close()
    if width == 400:
        path = write_comparison([study, build_study(20, seed=1)], tmp_path / "comparison.html")
        page = opened_at(browser, path, width=width, scheme=scheme, bypass_csp=True)
        check_by_axe(page)
        page.context.close()


def check_by_axe(page: Any) -> None:
    found = optional.module("axe_playwright_python.sync_playwright").Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in NO_SERIOUS] == []


def check_the_commands_are_in_sight(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    box = page.locator("header .command code").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    assert box["y"] + box["height"] < 900
    page.locator("#later-epochs").check()
    for command in page.locator("#models .take-it code").all():
        place = command.bounding_box()
        assert place["x"] + place["width"] <= 400


def check_what_keys_reach(page: Any) -> None:
    page.locator(".tabs button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator(".tabs button").nth(1).get_attribute("aria-pressed") == "true"
    page.locator("#trials th button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#trials th").first.get_attribute("aria-sort") == "ascending"
    names = page.locator("button").evaluate_all("all => all.map(one => one.ariaLabel || one.textContent.trim())")
    assert all(names)
    copies = [name for name in names if name.startswith("Copy the command")]
    assert len(copies) == len(set(copies)) > 3


def check_what_is_printed(page: Any) -> None:
    """All charts and no controls, on white."""
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.is_visible("nav")
    assert not page.is_visible("#picker")
    assert not page.is_visible(".copy >> nth=0")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#learning-rates .main-svg").count() > 0
