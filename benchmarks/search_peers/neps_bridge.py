"""NePS: PriMO without priors, or its Hyperband for several objectives; their configurations are rows of the table."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import torch
from ask_tell_bridge import Near, active, serve
from neps.optimizers.algorithms import mo_hyperband, primo
from neps.optimizers.ask_and_tell import AskAndTell
from neps.optimizers.optimizer import SampledConfig
from neps.space import HPOCategorical, HPOFloat, HPOInteger, SearchSpace

EPOCHS = "epochs"
FIRST_SHARE = 4
"""PriMO starts its model after a quarter of the budget; its default is a full training for each parameter."""


class Neps:
    """Asks NePS, whose spaces have no conditions: an inactive parameter has the centre of its range."""

    def __init__(self, order: dict, near: Near) -> None:
        random.seed(order["seed"])
        np.random.seed(order["seed"])
        torch.manual_seed(order["seed"])
        self._near, self._form, self._scales, self._epochs = near, order["space"], order["scales"], order["epochs"]
        self._rows: dict[int, int] = {}
        self._space = SearchSpace(
            {name: parameter(form) for name, form in self._form.items()}
            | {EPOCHS: HPOInteger(1, self._epochs, is_fidelity=True)}
        )
        first = max(1, order["full_trials"] // FIRST_SHARE)
        self._optimizer: Any = (
            primo(self._space, prior_centers={}, initial_design_size=min(first, len(self._form)))
            if order["variant"] == "primo"
            else mo_hyperband(self._space)
        )
        self._neps = AskAndTell(self._sampled)

    def _sampled(self, trials: Any, budget_info: Any, n: int | None) -> SampledConfig:
        """Its choice, at a row of the table, under a number of its own: PriMO's is that of a trial that runs.

        Where all trials that it could promote still run, its selector raises; then it starts another one. PriMO's model
        waits for a full training.
        """
        full = any(trial.report is not None and trial.config[EPOCHS] == self._epochs for trial in trials.values())
        choose = self._optimizer if full else getattr(self._optimizer, "bracket_optimizer", self._optimizer)
        try:
            sampled = choose(trials, budget_info, n)
        except ValueError:
            sampled = choose({}, budget_info, n)
        number, *rung = sampled.id.split("_", 1)
        if trials and (not rung or sampled.id in trials):
            number = str(1 + max(int(one.split("_")[0]) for one in trials))
        config = dict(sampled.config)
        if int(number) not in self._rows:
            epochs = config.pop(EPOCHS)
            self._rows[int(number)], params = self._near(active(self._form, config))
            centres = {name: self._space[name].center for name in self._form}
            config = centres | params | {EPOCHS: epochs}
        return SampledConfig("_".join([number, *rung]), config, sampled.previous_config_id)

    def ask(self) -> tuple[int, int, Any]:
        """Its next trial."""
        trial = self._neps.ask()
        return self._rows[int(trial.id.split("_")[0])], int(trial.config[EPOCHS]), trial

    def tell(self, trial: Any, values: list[float], usd: float) -> None:
        """The end of a trial; objectives are of order 1, because PriMO adds them up."""
        scaled = [value / scale for value, scale in zip(values, self._scales, strict=True)]
        self._neps.tell(trial, {"objective_to_minimize": scaled, "cost": usd})


def parameter(form: dict) -> Any:
    """A parameter in the form of a spec."""
    if form["type"] == "categorical":
        return HPOCategorical(form["choices"])
    kind = HPOFloat if form["type"] == "float" else HPOInteger
    return kind(form["low"], form["high"], log=form.get("log", False))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve(Neps)
