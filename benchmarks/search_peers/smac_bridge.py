"""SMAC's Hyperband facade for one objective, and ParEGO on its facade for hyperparameters for several."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from ask_tell_bridge import Near, config_space, serve
from ConfigSpace import Configuration
from smac import HyperparameterOptimizationFacade, MultiFidelityFacade, Scenario
from smac.multi_objective.parego import ParEGO
from smac.runhistory import TrialInfo, TrialValue

FIRST_CONFIGURATIONS = 5
"""As in SMAC's examples of both; the default, ten for each parameter, would take a small budget."""


class Smac:
    """Asks SMAC; its configurations are rows of the table before its intensifier sees them."""

    def __init__(self, order: dict, near: Near) -> None:
        self._near, self._epochs = near, order["epochs"]
        self._space = config_space(order["space"], order["seed"])
        self._rows: dict[Configuration, int] = {}
        facade: Any = MultiFidelityFacade if "mf" in order["variant"] else HyperparameterOptimizationFacade
        budgets = {"min_budget": 1, "max_budget": self._epochs} if "mf" in order["variant"] else {}
        scenario = Scenario(
            self._space,
            deterministic=True,
            objectives=order["objectives"],
            n_trials=order["full_trials"] * self._epochs,
            seed=order["seed"],
            output_directory=tempfile.mkdtemp(),
            **budgets,
        )
        more = {"multi_objective_algorithm": ParEGO(scenario)} if len(order["objectives"]) > 1 else {}
        self._smac = facade(
            scenario,
            target_function=lambda config, seed=0, budget=0: 0.0,  # noqa: ARG005 - never called
            initial_design=facade.get_initial_design(scenario, n_configs=FIRST_CONFIGURATIONS),
            logging_level=False,
            **more,
        )
        chosen = self._smac.intensifier.config_generator
        self._smac.intensifier._config_generator = self._rows_for(chosen)  # noqa: SLF001 - it has no public name

    def _rows_for(self, chosen: Iterator[Configuration]) -> Iterator[Configuration]:
        for one in chosen:
            row, params = self._near(dict(one))
            config = Configuration(self._space, values=params)
            config.origin = one.origin
            self._rows[config] = row
            yield config

    def ask(self) -> tuple[int, int, TrialInfo]:
        """Its next trial."""
        info = self._smac.ask()
        return self._rows[info.config], max(1, round(info.budget or self._epochs)), info

    def tell(self, info: TrialInfo, values: list[float], usd: float) -> None:
        """The end of a trial."""
        cost = values if len(values) > 1 else values[0]
        self._smac.tell(info, TrialValue(cost=cost, time=usd), save=False)


if __name__ == "__main__":
    serve(Smac)
