"""LightGBM: trains boosting rounds as the epochs of a trial with one rank.

    from automl.libraries.lightgbm import BoosterState

    def train(trial: automl.Trial) -> None:
        training = lightgbm.Dataset(x, y, free_raw_data=False)  # each epoch reads it again
        kept = BoosterState(trial)
        for epoch in trial.epochs(model=kept):
            kept.booster = lightgbm.train(
                params | {"seed": trial.seed % 2**31 + epoch}, training, num_boost_round=10,
                init_model=kept.booster, valid_sets=[validation], valid_names=["val"],
            )
            trial.report(val_error=kept.booster.best_score["val"]["binary_error"])

A resumed trial adds boosting rounds to the booster of its checkpoint.
"""

import lightgbm

from automl.libraries.epoch_calls import check_one_rank
from trainers.functions.trial import Trial


class BoosterState:
    """Saves and restores a booster in LightGBM's text format. Raises TaskError if the trial has several ranks.

    Attributes:
        booster: The booster so far; None before the first epoch.
    """

    def __init__(self, trial: Trial) -> None:
        check_one_rank(trial, "LightGBM")
        self.booster: lightgbm.Booster | None = None

    def state_dict(self) -> dict[str, str]:
        """Return the booster as text."""
        return {} if self.booster is None else {"booster": self.booster.model_to_string(num_iteration=-1)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Restore the booster from a checkpoint."""
        if "booster" in state:
            self.booster = lightgbm.Booster(model_str=state["booster"])

    def how_to_load(self, state: str) -> str:
        """Return Python lines that load the booster from a checkpoint."""
        return f'import lightgbm\n\nmodel = lightgbm.Booster(model_str={state}["booster"])'
