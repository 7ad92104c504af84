"""Ax with its default strategy: full trainings, whose parameters are rows of the table before it notes them."""

from __future__ import annotations

import logging
import math

import torch
from ask_tell_bridge import Near, active, serve
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def parent_value(form: dict) -> tuple[str, object] | None:
    """The parent of a parameter and its value, if there is one value: Ax's tree allows no more."""
    when = [(name, one if isinstance(one, list) else [one]) for name, one in form.get("when", {}).items()]
    return (when[0][0], when[0][1][0]) if len(when) == 1 and len(when[0][1]) == 1 else None


def parameters(space: dict) -> list[RangeParameterConfig | ChoiceParameterConfig]:
    """A space in the form of a spec; children of several values are always active."""
    made: list[RangeParameterConfig | ChoiceParameterConfig] = []
    for name, form in space.items():
        if form["type"] != "categorical":
            scaling = "log" if form.get("log") else "linear"
            bounds = (form["low"], form["high"])
            made.append(RangeParameterConfig(name=name, bounds=bounds, parameter_type=form["type"], scaling=scaling))
            continue
        children = {
            value: below
            for value in form["choices"]
            if (below := [child for child, other in space.items() if parent_value(other) == (name, value)])
        }
        made.append(
            ChoiceParameterConfig(
                name=name,
                values=form["choices"],
                parameter_type=TYPES[type(form["choices"][0])],
                is_ordered=False,
                dependent_parameters=children or None,
            )
        )
    return made


class Ax:
    """Asks Ax; a proposal gives way to the row that takes its place."""

    def __init__(self, order: dict, near: Near) -> None:
        self._near, self._epochs = near, order["epochs"]
        self._space = order["space"]
        self._always = {  # an inactive one that Ax takes for active has the centre of its range
            name: math.sqrt(form["low"] * form["high"]) if form.get("log") else (form["low"] + form["high"]) / 2
            for name, form in self._space.items()
            if "when" in form and parent_value(form) is None
        }
        self._client = Client(random_seed=order["seed"])
        self._client.configure_experiment(parameters=parameters(order["space"]))
        self._client.configure_optimization(objective=", ".join(f"-{name}" for name in order["objectives"]))
        # It cannot wait for the results of its first trials when more are asked for.
        self._client.configure_generation_strategy(allow_exceeding_initialization_budget=True)
        self._objectives = order["objectives"]

    def ask(self) -> tuple[int, int, int]:
        """Its next trial."""
        [(index, proposed)] = self._client.get_next_trials(max_trials=1).items()
        row, params = self._near(active(self._space, proposed))
        self._client.mark_trial_failed(index)  # an abandoned one would stay a pending point
        return row, self._epochs, self._client.attach_trial(self._always | params)

    def tell(self, index: int, values: list[float], usd: float) -> None:  # noqa: ARG002 - the interface
        """The end of a trial."""
        self._client.complete_trial(index, raw_data=dict(zip(self._objectives, values, strict=True)))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve(Ax)
