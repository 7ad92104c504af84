"""The common part of rivals with ask and tell: one question per line in, one answer per line out."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

Near = Callable[[dict], tuple[int, dict]]
"""From proposed parameters to the row that takes their place, and its parameters."""


def serve(rival: Callable[[dict, Near], Any]) -> None:
    """Answer until the questions end.

    Args:
        rival: Makes an object from the order for a study and `near`. Its `ask()` returns a row, the epoch up to which
            it is to be trained, and what `tell(job, values, usd)` gets back as its job.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.filterwarnings("ignore")

    def say(answer: Any) -> None:
        print(json.dumps(answer, default=lambda number: number.item()), file=answers, flush=True)

    def heard() -> dict:
        return json.loads(sys.stdin.readline() or "{}")

    def near(params: dict) -> tuple[int, dict]:
        say({"near": params})
        answer = heard()
        return answer["row"], answer["params"]

    study: Any = None
    jobs: list[Any] = []
    while question := heard():
        if "new" in question:
            study = rival(question["new"], near)
            say("ready")
        elif "ask" in question:
            row, epochs, job = study.ask()
            jobs.append(job)
            say({"job": [row, epochs, len(jobs) - 1]})
        else:
            number, values, usd = question["tell"]
            study.tell(jobs[number], values, usd)
            say("told")


def active(space: dict, params: dict) -> dict:
    """The parameters whose conditions hold, for libraries that know no conditions."""

    def holds(when: dict) -> bool:
        return all(params[name] in (one if isinstance(one, list) else [one]) for name, one in when.items())

    return {name: value for name, value in params.items() if holds(space[name].get("when", {}))}


def config_space(space: dict, seed: int) -> Any:
    """A space in the form of a spec, for those that use ConfigSpace."""
    from ConfigSpace import (
        AndConjunction,
        Categorical,
        ConfigurationSpace,
        Float,
        InCondition,
        Integer,
    )

    made = ConfigurationSpace(seed=seed)
    for name, form in space.items():
        if form["type"] == "categorical":
            made.add(Categorical(name, form["choices"]))
        else:
            number = Float if form["type"] == "float" else Integer
            made.add(number(name, (form["low"], form["high"]), log=form.get("log", False)))
    for name, form in space.items():
        conditions = [
            InCondition(made[name], made[parent], values if isinstance(values, list) else [values])
            for parent, values in form.get("when", {}).items()
        ]
        if conditions:
            made.add(conditions[0] if len(conditions) == 1 else AndConjunction(*conditions))
    return made
