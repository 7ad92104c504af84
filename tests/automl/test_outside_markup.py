"""Names that people choose hold brackets, colons and slashes, which a terminal shows as they are."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from automl.terminal.picture import Model, Picture, drawn, picture_of
from automl.terminal.progress import Lines, Progress
from automl.terminal.summary import confirmed_table, print_archive, print_running, print_trials
from automl.training.world_sizes import table
from studies.records.records import AttemptRecord, Objective
from tests.studies.test_analysis import study_of, trial

NAMES = ("recall[k=5]", "f1[/macro]", "x[/b]", "[bold]loss", "a:100:b")


def shown(show: Callable[[Console], Any]) -> str:
    console = Console(file=io.StringIO(), width=300, height=60)
    made = show(console)
    if made is not None:
        console.print(made)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def study_with(name: str) -> Any:
    """A study of one trial that has ended and one that trains, whose objective has the name."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    attempt = AttemptRecord(
        attempt=1, world_size=1, start_epoch=0, outcome="running", started_at=began, ended_at=None, facts={}
    )
    trials = [trial(0, (0.2, 1.0)), trial(1, (0.1, 2.0), state="running", attempts=(attempt,))]
    trials = [
        replace(one, epochs=tuple(replace(e, metrics={**e.metrics, name: 0.5 + one.id}) for e in one.epochs))
        for one in trials
    ]
    return study_of(*trials, objectives=(Objective(metric=name), Objective(metric="cost_usd")))


def private_table(command: str, *given: Any) -> RenderableType:
    return importlib.import_module(f"automl.commands.{command}")._table(*given)  # type: ignore[no-any-return]


def compared(name: str) -> dict[str, Any]:
    return {"task": name, "effective_batch": 64, "samples": 640, "epochs": 2, "world_sizes": []}


def confirmed(name: str) -> dict[str, Any]:
    row = {"trial": 1, "epoch": 6, "search": {name: 2.0}, "validation": {}, "test": {}}
    return {"study": f"of {name}", "seeds": 3, "trials": [row]}


def version(name: str) -> dict[str, Any]:
    known = {"version": "1", "role": name, "confirmed": 0.5, "aliases": [name], "metrics": {name: 0.5}}
    return known | {"model": name, "seeds": None, "trial": 1, "study": name, "epoch": 2, "forced": None}


SHOWN: dict[str, Callable[[Console, str], Any]] = {
    "picture": lambda console, name: drawn(
        Picture(
            name="s",
            state="running",
            objectives=(Objective(metric=name),),
            archive=[Model(name="1@1", values={name: 2.0})],
        ),
        console,
    ),
    "lines": lambda console, name: Lines(console).show(Picture(name=name, state="running")),
    "progress": lambda console, name: Progress(console).say(f"the best of {name}"),
    "trials": lambda console, name: print_trials(console, study_with(name)),
    "running": lambda console, name: print_running(console, study_with(name), picture_of(study_with(name), 1.8e9)),
    "archive": lambda console, name: print_archive(console, study_with(name)),
    "archive command": lambda console, name: print_archive(console, replace(study_with("val_error"), name=name)),
    "confirmed": lambda _, name: confirmed_table(confirmed(name)),
    "world sizes": lambda _, name: table(compared(name)),
    "models": lambda _, name: private_table("models", [version(name)]),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", SHOWN)
def test_a_name_is_shown_as_it_is(where: str, name: str) -> None:
    assert name in shown(lambda console: SHOWN[where](console, name))


def test_titles_keep_the_look_of_titles() -> None:
    for made in (confirmed_table(confirmed("x")), table(compared("x"))):
        assert isinstance(made.title, Text)
        assert made.title.style == "table.title"
