"""Baselines beside models: in words, and as lines in figures."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from automl.terminal.summary import document_of, print_archive, print_trials
from reports.baselines_on_page import against_baselines, baseline_lines, hypervolumes
from reports.content import baseline_rows, trial_table
from reports.gallery import figures_of_page
from reports.page import render
from studies.records.records import Constraint, Objective, StudyRecord
from studies.results import analysis
from studies.results.baselines import baseline_trials, baselines
from studies.results.recommendation import recommended
from tests.reports.test_recommending import confirmed
from tests.studies.test_analysis import study_of, trial
from tests.support.study_factory import build_study

USUAL = {"name": "usual trees", "params": {"lr": 0.0}}
MAJORITY = {"name": "always <b>no</b>", "metrics": {"val_error": 0.48, "val_loss": 0.7}}
TRIALS = (trial(0, (0.2, 1.0), (0.1, 2.0), (0.15, 3.0)), trial(1, (0.02, 2.5)))


def compared(*named: dict[str, Any], **changes: Any) -> StudyRecord:
    study = study_of(*TRIALS, **changes)
    return study_of(*TRIALS, spec={**study.spec, "baselines": list(named)}, **changes)


def shapes(drawn: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = drawn.figure["layout"].get("shapes", [])
    return found


def test_a_trial_counts_by_its_best_epoch_for_one_baseline() -> None:
    usual, majority = baselines(compared(USUAL, MAJORITY))
    assert usual.plain() == {
        "name": "usual trees", "trial": 0, "epoch": 2, "values": {"val_error": 0.1, "cost_usd": 2.0},
        "finished": True,
    }  # fmt: skip
    assert majority.plain() == {
        "name": "always <b>no</b>", "trial": None, "epoch": None, "values": {"val_error": 0.48}, "finished": True,
    }  # fmt: skip
    assert baseline_trials(compared(USUAL, MAJORITY)) == {0: "usual trees"}
    # Although the parameters of the second are part of those of the first.
    named = [{"name": "A", "params": {"w": 32, "lr": 0.1}}, {"name": "B", "params": {"w": 32}}]
    trials = (
        replace(trial(0, (0.5, 1.0)), params={"w": 32, "lr": 0.1}),
        replace(trial(1, (0.4, 1.0)), params={"w": 32, "lr": 0.3}),
    )
    study = study_of(*trials)
    assert baseline_trials(replace(study, spec={**study.spec, "baselines": named})) == {0: "A", 1: "B"}


def test_a_baseline_that_breaks_a_constraint_says_so_wherever_it_is_shown() -> None:
    """Else a boss takes it, since its error is lower than that of the recommended model."""
    constraint = Constraint(metric="latency_ms", max=0.7)
    searched = build_study(60, constraints=(constraint,))
    usual = {"name": "usual net", "params": dict(searched.started[43].params)}
    known = {"name": "today's model", "metrics": {"val_error": 0.1, "latency_ms": 3.0}}
    study = replace(searched, spec={**searched.spec, "baselines": [usual, known]})
    trained, other = baselines(study)
    latency = study.started[43].epochs[19].metrics["latency_ms"]
    assert (trained.epoch, trained.bounded) == (20, {"latency_ms": latency})
    assert trained.broken == other.broken == "latency_ms at most 0.7"
    assert trained.called == "usual net, infeasible"
    found = recommended(study)
    said = against_baselines(study, found.point)
    assert "of usual net (43@20, breaks latency_ms at most 0.7)" in said
    assert "of today's model (breaks latency_ms at most 0.7)" in said
    assert [row.values[-1].text for row in baseline_rows(study)] == [f"{latency:.3f} ms", "3 ms"]


def test_a_baseline_is_its_best_epoch_that_was_measured_and_is_feasible() -> None:
    study = compared(USUAL, constraints=(Constraint(metric="cost_usd", max=1.5),))
    (usual,) = baselines(study)
    assert (usual.epoch, usual.broken) == (1, "")
    study = compared({"name": "later", "params": {"lr": 0.7}})
    assert baselines(study) == []
    assert baseline_trials(study) == {}
    assert baselines(study_of(*TRIALS)) == []
    study = compared(USUAL, objectives=(Objective(metric="val_error", direction="maximize"),))
    assert baselines(study)[0].model == "0@1"


def test_a_training_that_has_not_ended_is_called_unfinished_wherever_it_is_shown() -> None:
    begun = (replace(TRIALS[0], state="paused"), TRIALS[1])
    study = compared(USUAL)
    study = study_of(*begun, spec=study.spec)
    assert baselines(study)[0].plain()["finished"] is False
    first = analysis.archive(study)[-1]
    assert against_baselines(study, first) == "val_error is 2 %, against 10 % of usual trees (0@2, unfinished)."
    assert baseline_lines(study) == ["usual trees (0@2, unfinished): val_error 10 %, cost_usd $2.00"]
    drawn = figures_of_page(study, analysis.archive(study))
    assert shapes(drawn["curves"]["curves-0"])[0]["name"] == "usual trees, unfinished"
    assert "baseline: usual trees, unfinished" in render(study)
    console = Console(file=io.StringIO(), width=120)
    print_archive(console, study)
    assert "usual trees, unfinished" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_model_stands_against_each_of_them_in_words() -> None:
    study = compared(USUAL, MAJORITY)
    first, second = analysis.archive(study)[-1], analysis.archive(study)[0]
    assert (first.trial, second.trial) == (1, 0)
    assert against_baselines(study, first) == (
        "val_error is 2 %, against 10 % of usual trees (0@2) and 48 % of always <b>no</b>."
    )
    assert against_baselines(study, second) == (
        "Its trial is the baseline 'usual trees' itself, against 48 % of always <b>no</b>."
    )
    assert against_baselines(study_of(*TRIALS), first) == ""

    assert baseline_lines(study) == [
        "usual trees (0@2): val_error 10 %, cost_usd $2.00",
        "always <b>no</b>: val_error 48 %",
    ]


def test_what_fresh_seeds_have_shown_stands_beside_baselines_and_in_the_picture() -> None:
    study = compared(USUAL)
    first = analysis.archive(study)[-1]
    known = replace(study, confirmations=confirmed(1, 0.04, 0.06))
    assert against_baselines(known, first) == (
        "In the search val_error is 2 %, against 10 % of usual trees (0@2). `automl confirm digits 0@2` measures "
        "usual trees with fresh seeds, too."
    )
    others = tuple(replace(one, epoch=2) for one in confirmed(0, 0.11, 0.13))
    both = replace(study, confirmations=(*known.confirmations, *others))
    assert against_baselines(both, first).endswith(
        " On the test part, with fresh seeds, it is 5 %, against 12 % of usual trees."
    )
    study = replace(compared(USUAL), confirmations=confirmed(1, 0.04, 0.06))
    drawn: Any = figures_of_page(study, analysis.archive(study))["trade_off"]["trade-off"].figure
    (trace,) = [one for one in drawn["data"] if one["name"] == "confirmed with fresh seeds"]
    assert (trace["x"], trace["y"]) == ([0.05], [2.5])
    assert trace["error_x"]["array"] == pytest.approx([0.01 * 2**0.5], rel=1e-3)
    assert "on the test part, seeds: 2" in trace["text"][0]


@pytest.mark.parametrize(("objectives", "of"), [(1, "y"), (2, "x")])
def test_each_is_a_line_in_every_picture_with_its_metric(objectives: int, of: str) -> None:
    study = compared(USUAL, MAJORITY, objectives=study_of().objectives[:objectives])
    drawn = figures_of_page(study, analysis.archive(study))
    for one, at in ((drawn["trade_off"]["trade-off"], of), (drawn["curves"]["curves-0"], "y")):
        assert [shape[f"{at}0"] for shape in shapes(one)] == [0.1, 0.48]
        assert [shape["name"] for shape in shapes(one)] == ["usual trees", "always &lt;b&gt;no&lt;/b&gt;"]
    plain = study_of(*TRIALS, objectives=study.objectives)
    for group in figures_of_page(plain, analysis.archive(plain)).values():
        assert not any(shapes(one) for one in group.values())


@pytest.mark.parametrize(("objectives", "arrow"), [(1, "↑"), (2, "→")])
def test_one_far_from_all_models_is_an_arrow_and_does_not_stretch_the_axis(objectives: int, arrow: str) -> None:
    near = {"name": "near", "metrics": {"val_error": 0.13}}
    plain = study_of(trial(0, (0.1, 1.0)), trial(1, (0.12, 2.0)), objectives=study_of().objectives[:objectives])
    study = replace(plain, spec={**plain.spec, "baselines": [MAJORITY, near]})
    drawn = figures_of_page(study, analysis.archive(study))["trade_off"]["trade-off"]
    assert [shape["name"] for shape in shapes(drawn)] == ["near"]
    layout: Any = drawn.figure["layout"]
    assert [text["text"] for text in layout["annotations"]] == [f"always &lt;b&gt;no&lt;/b&gt; (48 %) {arrow}"]


def test_hypervolume_has_the_share_that_each_has_on_its_own() -> None:
    study = compared(USUAL, MAJORITY, {"name": "free", "metrics": {"val_error": 0.05, "cost_usd": 0.5}})
    whole, alone = analysis.hypervolume(study), dict(hypervolumes(study))
    assert list(alone) == ["usual trees", "free"]
    assert whole is not None
    assert 0 < alone["usual trees"] < whole
    lines = shapes(figures_of_page(study, analysis.archive(study))["hypervolume"]["hypervolume"])
    assert [line["y0"] for line in lines] == pytest.approx([100 * alone[name] / whole for name in alone])


def test_each_is_a_row_in_all_tables_which_are_as_before_without_them() -> None:
    study = compared(USUAL, MAJORITY)
    console = Console(width=200, file=io.StringIO())
    for show in (print_trials, print_archive):
        show(console, study)
    trials, archive = console.file.getvalue().split("archive:")  # type: ignore[attr-defined]
    assert "baseline: usual trees" in next(line for line in trials.splitlines() if line.split()[:1] == ["0"])
    assert re.search(r"baseline +48 % +always <b>no</b>", trials)
    assert re.search(r"usual trees +baseline +10 % +\$2", archive)
    assert re.search(r"always <b>no</b> +baseline +48 %", archive)
    page = render(study)
    assert "baseline: always &lt;b&gt;no&lt;/b&gt;" in page
    assert ", against " in page
    assert "always <b>no</b>" not in page
    assert [row["baseline"] for row in analysis.trial_rows(study)] == ["usual trees", None]
    assert document_of(study, report=None)["baselines"] == [one.plain() for one in baselines(study)]
    study = study_of(*TRIALS)
    assert "baseline" not in analysis.trial_rows(study)[0]
    assert [len(row) for row in trial_table(study)[1]] == [len(trial_table(study)[0])] * 2
    with_both = trial_table(compared(USUAL, MAJORITY))
    assert [len(row) for row in with_both[1]] == [len(with_both[0])] * 3
