"""XGBoost: trains boosting rounds as the epochs of a trial with one rank.

    from automl.libraries.xgboost import BoosterState

    def train(trial: automl.Trial) -> None:
        kept = BoosterState(trial)
        for epoch in trial.epochs(model=kept):
            found = {}
            kept.booster = xgboost.train(
                params | {"seed": trial.seed + epoch}, training, num_boost_round=10, xgb_model=kept.booster,
                evals=[(validation, "val")], evals_result=found,
            )
            trial.report(val_error=found["val"]["error"][-1])

A resumed trial adds boosting rounds to the booster of its checkpoint.
"""

import torch
import xgboost
from torch import Tensor

from automl.libraries.epoch_calls import check_one_rank
from trainers.functions.trial import Trial


class BoosterState:
    """Saves and restores a booster in XGBoost's format (UBJSON). Raises TaskError if the trial has several ranks.

    Attributes:
        booster: The booster so far; None before the first epoch.
    """

    def __init__(self, trial: Trial) -> None:
        check_one_rank(trial, "XGBoost")
        self.booster: xgboost.Booster | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the booster as bytes."""
        if self.booster is None:
            return {}
        return {"booster": torch.frombuffer(self.booster.save_raw("ubj"), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the booster from a checkpoint."""
        if "booster" in state:
            self.booster = xgboost.Booster(model_file=bytearray(state["booster"].numpy()))

    def how_to_load(self, state: str) -> str:
        """Return Python lines that load the booster from a checkpoint."""
        return f'import xgboost\n\nmodel = xgboost.Booster(model_file=bytearray({state}["booster"].numpy()))'
