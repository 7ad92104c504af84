"""Boosted trees of XGBoost as a trial: two interleaved half-moons, with five boosting rounds per epoch."""

import torch
import xgboost
from own_task import moons

import automl
from automl.libraries.xgboost import BoosterState


def train(trial: automl.Trial) -> None:
    training = xgboost.DMatrix(*(part.numpy() for part in moons(600, seed=0)))
    validation = xgboost.DMatrix(*(part.numpy() for part in moons(300, seed=1)))
    params = {
        "objective": "binary:logistic", "eval_metric": "error", "subsample": 0.8, "nthread": torch.get_num_threads(),
        "eta": trial.params["eta"], "max_depth": trial.params["depth"],
    }  # fmt: skip
    kept = BoosterState(trial)
    for epoch in trial.epochs(model=kept):
        found = {}
        seeded = params | {"seed": (trial.seed + epoch) % 2**31}  # each epoch draws its own samples
        kept.booster = xgboost.train(
            seeded, training, num_boost_round=5, xgb_model=kept.booster,
            evals=[(validation, "val")], evals_result=found, verbose_eval=False,
        )  # fmt: skip
        trial.report(val_error=found["val"]["error"][-1])
