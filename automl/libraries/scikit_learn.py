"""scikit-learn: calls `partial_fit` as the epochs of a trial with one rank.

    from automl.libraries.scikit_learn import EstimatorState

    def train(trial: automl.Trial) -> None:
        model = SGDClassifier(alpha=trial.params["alpha"])
        for epoch in trial.epochs(model=EstimatorState(trial, model)):
            model.partial_fit(x, y, classes=[0, 1])
            trial.report(val_error=1 - model.score(x_validation, y_validation))

A resumed trial continues to fit the estimator of its checkpoint.
"""

from collections.abc import Sequence
from typing import Any

import skops.io
import torch
from torch import Tensor

from automl.libraries.epoch_calls import check_one_rank
from trainers.functions.trial import Trial
from trainers.protocol import TaskError

_TRUSTED = ("sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
            "sklearn.neural_network._stochastic_optimizers.SGDOptimizer")  # fmt: skip
"""Types of MLPClassifier and MLPRegressor that skops does not know."""


class EstimatorState:
    """Saves and restores an estimator or a pipeline in skops' format, whose reading executes no code.

    `trusted` names further types, `module.Type` each, that a checkpoint may contain. Raises TaskError if the trial has
    several ranks.
    """

    def __init__(self, trial: Trial, estimator: Any, trusted: Sequence[str] = ()) -> None:
        check_one_rank(trial, "scikit-learn")
        self._estimator, self._trusted = estimator, [*_TRUSTED, *trusted]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the estimator as bytes. Raises TaskError for an untrusted type in it."""
        content = skops.io.dumps(self._estimator)
        unknown = sorted({*skops.io.get_untrusted_types(data=content)} - {*self._trusted})
        if unknown:
            raise TaskError(
                f"EstimatorState: skops does not trust {', '.join(unknown)} in {type(self._estimator).__name__}. If "
                "you do, name the types in trusted=[...]"
            )
        return {"estimator": torch.frombuffer(bytearray(content), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the estimator from a checkpoint."""
        content = state["estimator"].numpy().tobytes()
        vars(self._estimator).update(vars(skops.io.loads(content, trusted=self._trusted)))

    def how_to_load(self, state: str) -> str:
        """Return Python lines that load the estimator from a checkpoint."""
        given = f'{state}["estimator"].numpy().tobytes()'
        return f"import skops.io\n\nmodel = skops.io.loads({given}, trusted={self._trusted!r})"
