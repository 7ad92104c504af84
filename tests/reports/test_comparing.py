"""Several studies on one page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from automl.commands.report import report
from reports.comparing import ComparisonError, comparable, differences, render_comparison, write_comparison
from reports.figures import as_plotly
from studies.records.records import StudyRecord
from studies.results import analysis
from studies.results.pareto import reference_of
from tests.reports.test_page import ACCURACY, LATENCY, data_of, hostile, read
from tests.support.study_factory import COST, ERROR, build_study


def two() -> list[StudyRecord]:
    first, second = build_study(60), build_study(40, seed=4)
    search = {"sampler": "random", "pruner": {"name": "mo_asha", "grace": 3, "eta": 3}, "seed": 0}
    return [first, replace(second, name="other", spec={**second.spec, "study": "other", "search": search})]


def test_all_are_measured_from_the_worst_reference_point_and_named_with_their_share() -> None:
    studies = two()
    references = [reference_of(study) for study in studies]
    found = {tuple((reference_of(study) or {}).items()) for study in comparable(studies)}
    worst = {name: max(one[name] for one in references if one) for name in ("val_error", "cost_usd")}
    assert found == {tuple(worst.items())}
    assert all(analysis.hypervolume(one) for one in comparable(studies))
    page = render_comparison(two())
    text = " ".join("".join(read(page).text).split())
    assert "2 studies compared" in text
    assert "100 % is the most that any of them has found." in text
    assert "automl report digits other" in text
    data = data_of(page)
    assert set(data) == {"gains", "models"}
    assert max(trace["y"][-1] for trace in data["gains"]["data"]) == 100
    for figure in data.values():
        as_plotly(figure)


def test_the_order_of_objectives_does_not_matter_but_their_choice_does() -> None:
    turned = build_study(20, objectives=(COST, ERROR))
    assert comparable([build_study(20), turned])[1].objectives == (ERROR, COST)
    with pytest.raises(ComparisonError, match=r"^report: digits is for val_error \(minimized\) and cost_usd") as told:
        comparable([build_study(20), replace(build_study(20, objectives=(ACCURACY, COST)), name="b")])
    assert str(told.value).endswith("Only studies with the same objectives can be compared")


def test_only_keys_that_differ_are_told_however_large_a_space_is() -> None:
    told = {one.key: one.values for one in differences(two())}
    assert told["search.sampler"] == ["tpe", "random"]
    assert "study" not in told
    assert "search.seed" not in told
    assert "task" not in told
    first = build_study(20)
    spaces = [{f"p{number:02}": {"type": "float", "low": low} for number in range(50)} for low in (0.1, 0.2)]
    studies = [
        replace(first, name=name, spec={**first.spec, "study": name, "space": space, "training": {"ema": ema}})
        for name, space, ema in zip("ab", spaces, (0.99991, 0.99994), strict=True)
    ]
    page = read(render_comparison(studies))
    assert next(iter(differences(studies))).key == "training.ema"
    assert "training.ema" in "".join(page.text)
    assert "11 more keys differ." in "".join(page.text)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.99991, 0.99994), ["0.99991", "0.99994"]), ((0.1, 0.25), ["0.1", "0.25"]), ((1, True), ["1", "True"]),
        ((1, "1"), ["1", "'1'"]), ((1e-5, 1.0004e-5), ["1e-05", "1.0004e-05"]), ((1, 1.0), None),
        ((None, "absent"), None),
    ],
)  # fmt: skip
def test_values_that_differ_look_different(values: tuple[object, object], texts: list[str] | None) -> None:
    study = build_study(1)
    given = [{} if value == "absent" else {"ema": value} for value in values]
    told = differences([replace(study, spec={"training": one, "seed": n}) for n, one in enumerate(given)])
    assert {one.key: one.values for one in told}.get("training.ema") == texts


@pytest.mark.parametrize(
    "studies", [[build_study(0), replace(build_study(0), name="b")], [build_study(9), build_study(0)]]
)
def test_studies_without_anything_found_have_a_page(studies: list[StudyRecord]) -> None:
    assert "studies compared" in render_comparison(studies)


@pytest.mark.medium
def test_stairs_go_through_the_best_of_the_plane_and_one_objective_has_columns() -> None:
    objectives = (ERROR, LATENCY, ACCURACY, COST)
    studies = [replace(study, objectives=objectives) for study in two()]
    drawn = data_of(render_comparison(studies))["models"]["data"]
    for study in studies:
        stairs, others = [trace for trace in drawn if trace["name"] == study.name]
        assert (stairs["mode"], others["mode"], others["showlegend"]) == ("lines+markers", "markers", False)
        assert stairs["y"] == sorted(stairs["y"], reverse=True)
        assert len(stairs["x"]) + len(others["x"]) == len(analysis.archive(study))
        assert len(stairs["text"]) == len(stairs["x"]) > 1
    plain = data_of(render_comparison(two()))["models"]["data"]
    assert [trace["name"] for trace in plain] == [study.name for study in two()], "of two objectives all are the best"
    page = render_comparison([build_study(20, objectives=(ERROR,)), build_study(20, seed=2, objectives=(ERROR,))])
    assert {y for trace in data_of(page)["models"]["data"] for y in trace["y"]} == {0, 1}


def test_hostile_names_do_not_run_in_a_browser_without_network(browser: Any, tmp_path: Path) -> None:
    evil = hostile()
    troubles: list[str] = []
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.on("dialog", lambda d: (troubles.append(d.message), d.dismiss()))
    page.on("request", lambda r: troubles.append(r.url) if r.url.startswith("http") else None)
    page.goto(write_comparison([evil, replace(evil, name="b")], tmp_path / "comparison.html").as_uri())
    page.wait_for_selector("#gains .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert "secret-word" not in page.content()
    assert troubles == []
    page.close()


def test_a_study_that_is_named_twice_is_refused() -> None:
    result = CliRunner().invoke(report, ["a", "b", "a"])
    assert result.exit_code == 2
    assert "STUDY: 'a' is named twice. Name each study once" in result.output
