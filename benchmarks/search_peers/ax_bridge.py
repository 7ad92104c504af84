"""Ax with its default strategy: full trainings, whose parameters are rows of the table before it notes them."""

from __future__ import annotations

import logging

import torch
from ask_tell_bridge import Near, serve
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def parameters(space: dict) -> list[RangeParameterConfig | ChoiceParameterConfig]:
    """A space in the form of a spec; children of several parents are always active."""
    made: list[RangeParameterConfig | ChoiceParameterConfig] = []
    for name, form in space.items():
        if form["type"] != "categorical":
            scaling = "log" if form.get("log") else "linear"
            bounds = (form["low"], form["high"])
            made.append(RangeParameterConfig(name=name, bounds=bounds, parameter_type=form["type"], scaling=scaling))
            continue
        children: dict = {}
        for child, other in space.items():
            when = other.get("when", {})
            if list(when) == [name]:
                values = when[name] if isinstance(when[name], list) else [when[name]]
                for value in values:
                    children.setdefault(value, []).append(child)
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
        self._client = Client(random_seed=order["seed"])
        self._client.configure_experiment(parameters=parameters(order["space"]))
        self._client.configure_optimization(objective=", ".join(f"-{name}" for name in order["objectives"]))
        # It cannot wait for the results of its first trials when more are asked for.
        self._client.configure_generation_strategy(allow_exceeding_initialization_budget=True)
        self._objectives = order["objectives"]

    def ask(self) -> tuple[int, int, int]:
        """Its next trial."""
        [(index, proposed)] = self._client.get_next_trials(max_trials=1).items()
        row, params = self._near(proposed)
        self._client.mark_trial_failed(index)  # an abandoned one would stay a pending point
        return row, self._epochs, self._client.attach_trial(params)

    def tell(self, index: int, values: list[float], usd: float) -> None:  # noqa: ARG002 - the interface
        """The end of a trial."""
        self._client.complete_trial(index, raw_data=dict(zip(self._objectives, values, strict=True)))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve(Ax)
