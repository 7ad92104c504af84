"""Terminal, JSON, page, charts, notebook, service page, agents' tool, Python and `export` name one model to take."""

import io
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import automl
from automl.exporting.origins import named_point
from automl.mcp_server.study_tools import recommendation
from automl.notebook_cell import study_cell
from automl.service.pages.study_view import view_of
from automl.terminal.summary import document_of, print_summary
from reports.figures import trade_off
from reports.page import render
from reports.recommending import recommendation_lines
from studies.queueing.jobs import Job
from studies.records.records import Constraint, Objective, StudyRecord
from studies.results import analysis
from studies.results.recommendation import best_point, recommended
from tests.reports.test_page import ACCURACY, FOUR, read
from tests.support.command_line import DIGITS, Workplace
from tests.support.study_factory import COST, ERROR, build_study

JOB = Job(
    id=1, kind="study", study="digits", project="a", user="a", priority=0, state="done", reason="", slots=1,
    limit_nano_usd=None, spent_nano_usd=0, request=None, submitted_at=0.0, queued_at=0.0, ended_at=1.0,
)  # fmt: skip
OBJECTIVES: tuple[tuple[Objective, ...], ...] = (
    (ERROR, COST), (COST, ERROR), (ERROR,), (ACCURACY, COST), FOUR, (ERROR, Objective(metric="model_parameters")),
)  # fmt: skip


class OneStudy:
    """Status of a study as the agents' tool asks for it."""

    def __init__(self, study: StudyRecord) -> None:
        self._study = study

    def status(self, _: str) -> dict[str, Any]:
        return {"job": {"study": "digits", "state": "done"}, "study": document_of(self._study, report=None)}


def named_everywhere(study: StudyRecord) -> dict[str, str]:
    """The recommended model by the place that names it."""
    console = Console(file=io.StringIO(), width=300)
    print_summary(console, study, report=None)
    page, document, view = render(study), document_of(study, report=None), view_of(JOB, study)
    drawn: Any = trade_off(study, analysis.archive(study))["data"]
    star = next(trace for trace in drawn if trace["name"] == "recommended")
    first_row = re.search(r'data-model="([^"]+)"', page)
    marked = re.search(r'data-model="([^"]+)"(?:(?!</tr>).)*· recommended', page, re.DOTALL)
    plain: Any = document["recommendation"]
    trial, epoch = named_point(study, "best")
    point = best_point(study)
    return {
        "terminal": _taken(console.file.getvalue()),  # type: ignore[attr-defined]
        "JSON": f"{plain['trial']}@{plain['epoch']}",
        "page": _taken("".join(read(page).text)),
        "first row of the page": first_row[1] if first_row else "",
        "marked row of the page": marked[1] if marked else "",
        "star": star["text"][0].removeprefix("recommended: "),
        "picture": re.findall(r"recommended: (\S+)</title>", str(view.picture))[0],
        "notebook": _taken(study_cell(study)),
        "service": _taken("\n".join(view.recommendation)),
        "first row of the service": view.kept[0].name,
        "agents": str(recommendation(OneStudy(study), "digits")["point"]),  # type: ignore[arg-type]
        "Python": f"{point.trial}@{point.epoch}",
        "export": f"{trial}@{epoch}",
        "Python, in full": str(recommended(study)),
    }


def _taken(text: str) -> str:
    found = re.search(r"Take\s+(\d+@\d+):", text)
    return found[1] if found else ""


def studies() -> Iterator[Any]:
    random_numbers = random.Random(5)
    for seed in range(30):
        study = build_study(20, seed=seed, objectives=OBJECTIVES[seed % len(OBJECTIVES)])
        if seed % 3:  # noise, so that models tie
            noise = random_numbers.choice([0.003, 0.02, 0.1])
            study = replace(study, trials=tuple(
                replace(one, epochs=tuple(
                    replace(epoch, metrics={
                        **epoch.metrics, "val_error_stderr": noise, "val_accuracy_stderr": noise,
                    })
                    for epoch in one.epochs
                ))
                for one in study.trials
            ))  # fmt: skip
        if seed % 4 == 1:
            study = replace(study, constraints=(Constraint(metric="val_accuracy", min=0.3),))
        if seed % 5 == 2:
            known = {"name": "always the most frequent class", "metrics": {"val_error": 0.12, "val_accuracy": 0.88}}
            study = replace(study, spec={**study.spec, "baselines": [known]})
        yield pytest.param(study, id=str(seed))


@pytest.mark.medium
@pytest.mark.parametrize("study", list(studies()))
def test_all_places_name_one_model(study: StudyRecord) -> None:
    named = named_everywhere(study)
    assert len(set(named.values())) == 1, named
    lines = recommendation_lines(study)
    found = recommended(study)
    assert found is not None
    assert lines[0].startswith("No model beats always" if found.unbeaten else "Take ")


@pytest.mark.large
def test_all_places_name_one_model_of_real_studies(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {**DIGITS, "search": {"sampler": "tpe", "seed": 3}, "training": {"epochs": 3}, "budget": {"trials": 3}}
    sections: list[dict[str, Any]] = [
        {"study": "dollars"},
        {"study": "alone", "objectives": [{"metric": "val_error"}]},
        {"study": "size", "objectives": [{"metric": "val_error"}, {"metric": "model_parameters"}]},
        {"study": "first", "objectives": [{"metric": "cost_usd"}, {"metric": "val_accuracy", "direction": "maximize"}]},
        {"study": "bounded", "constraints": [{"metric": "model_parameters", "max": 4000}]},
    ]
    monkeypatch.chdir(place.folder)
    for one in sections:
        place.run("launch", place.spec({**plain, **one}))
        study = automl.load(one["study"])
        record = study.record
        assert {"val_error_stderr", "val_loss_stderr"} <= set(record.started[0].epochs[0].metrics)
        named = named_everywhere(record)
        assert set(named.values()) == {str(study.recommendation)}, (one, named)
        assert f"Take {study.recommendation}:" in place.run("status", one["study"]).stdout
        assert place.json("status", one["study"])["recommendation"]["trial"] == study.best().trial
