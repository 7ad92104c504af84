"""A scikit-learn estimator as a trial: two interleaved half-moons, with one pass over the data per epoch."""

from own_task import moons
from sklearn.neural_network import MLPClassifier

import automl
from automl.libraries.scikit_learn import EstimatorState


def train(trial: automl.Trial) -> None:
    x, y = (part.numpy() for part in moons(600, seed=0))
    x_validation, y_validation = (part.numpy() for part in moons(300, seed=1))
    model = MLPClassifier(
        [trial.params["width"]], learning_rate_init=trial.learning_rate, random_state=trial.seed % 2**32
    )
    for _epoch in trial.epochs(model=EstimatorState(trial, model)):
        model.partial_fit(x, y, classes=[0, 1])
        trial.report(val_error=1 - model.score(x_validation, y_validation))
