"""Boosted trees of LightGBM as a trial: two interleaved half-moons, with five boosting rounds per epoch."""

import lightgbm
import torch
from own_task import moons

import automl
from automl.libraries.lightgbm import BoosterState


def train(trial: automl.Trial) -> None:
    options = {"free_raw_data": False}  # each epoch reads the data again
    training = lightgbm.Dataset(*(part.numpy() for part in moons(600, seed=0)), **options)
    validation = lightgbm.Dataset(*(part.numpy() for part in moons(300, seed=1)), reference=training, **options)
    params = {
        "objective": "binary", "metric": "binary_error", "verbosity": -1, "num_threads": torch.get_num_threads(),
        "bagging_fraction": 0.8, "bagging_freq": 1,
        "learning_rate": trial.params["eta"], "num_leaves": 2 ** trial.params["depth"],
    }  # fmt: skip
    kept = BoosterState(trial)
    for epoch in trial.epochs(model=kept):
        seeded = params | {"seed": (trial.seed + epoch) % 2**31}  # each epoch draws its own samples
        kept.booster = lightgbm.train(
            seeded, training, num_boost_round=5, init_model=kept.booster, valid_sets=[validation], valid_names=["val"]
        )
        trial.report(val_error=kept.booster.best_score["val"]["binary_error"])
