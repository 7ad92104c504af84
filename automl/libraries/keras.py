"""Keras 3: runs `model.fit` as the training loop of a trial with one rank.

    from automl.libraries import keras as trial_keras

    def train(trial: automl.Trial) -> None:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(trial.params["width"]), ...])
        model.compile(keras.optimizers.Adam(trial.learning_rate), loss="mse", metrics=["mae"])
        trial_keras.fit(trial, model, x, y, validation_data=(x_validation, y_validation))

All logs of `fit` are reported under Keras' names: `val_mae`, `val_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch
from torch import Tensor

from automl.libraries.epoch_calls import EpochCalls, check_one_rank
from trainers.functions.trial import Trial
from trainers.protocol import TaskError


def fit(
    trial: Trial, model: keras.Model, *data: Any, callbacks: Sequence[keras.callbacks.Callback] = (), **options: Any
) -> None:
    """Run `model.fit` as the trial's training loop, after the epochs of earlier attempts.

    Args:
        model: A compiled model with a known input shape, so that its weights exist.
        data: Inputs and targets, or other training data of `model.fit`; `x` and `y` may also be options.
        callbacks: Callbacks besides the trial's own.
        options: Other arguments of `model.fit`. For arrays, `batch_size` is by default the trial's.

    Raises:
        TaskError: The trial has several ranks or sets an argument itself, or the model has no weights yet.
    """
    check_one_rank(trial, "Keras")
    taken = sorted({"epochs", "initial_epoch"} & options.keys())
    if taken:
        raise TaskError(f"fit() got {taken[0]}, which the trial sets itself. Leave {taken[0]} out")
    if not model.built or not model.compiled:
        raise TaskError("fit() needs a built and compiled model. Start it with keras.Input, and compile it first")
    calls = EpochCalls(trial, keras=_Kept(model))
    if isinstance(model, torch.nn.Module):
        trial.modules.append(model)
    if calls.are_all_done():
        return
    if _are_arrays(data[0] if data else options.get("x")):
        options.setdefault("batch_size", trial.batch_per_rank)
    options.setdefault("verbose", 0)
    own = TrialCallback(trial, calls)
    model.fit(*data, epochs=trial.max_epochs, initial_epoch=calls.done, callbacks=[own, *callbacks], **options)


class TrialCallback(keras.callbacks.Callback):
    """Reports the logged metrics after each epoch, and begins the next epoch. `fit` adds this callback."""

    def __init__(self, trial: Trial, calls: EpochCalls) -> None:
        super().__init__()
        self._trial, self._calls = trial, calls
        self._logged: dict[str, Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """End the previous epoch and begin this one."""
        self._report()
        self._calls.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Send a heartbeat after each training batch."""
        self._trial.heartbeat()

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Send a heartbeat after each evaluation batch."""
        self._trial.heartbeat()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Store the logged metrics, to which later callbacks may still add."""
        self._logged = {} if logs is None else logs

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Report the last epoch."""
        self._report()

    def _report(self) -> None:
        if self._logged is not None:
            self._calls.report(self._logged, "Keras")
        self._logged = None


def _are_arrays(inputs: Any) -> bool:
    """Return whether inputs are arrays, which Keras splits into batches, unlike loaders and generators."""
    if isinstance(inputs, Mapping):
        inputs = [*inputs.values()]
    if isinstance(inputs, list | tuple):
        return bool(inputs) and all(map(_are_arrays, inputs))
    return hasattr(inputs, "shape")


class _Kept:
    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def state_dict(self) -> dict[str, list[Tensor]]:
        values = (keras.ops.convert_to_numpy(variable) for variable in self._variables())
        return {"variables": [torch.as_tensor(value.copy()) for value in values]}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        for variable, value in zip(self._variables(), state["variables"], strict=True):
            variable.assign(value.numpy())

    def how_to_load(self, state: str) -> str:
        return (
            f'for variable, value in zip(model.variables, {state}["variables"]):  # made for exported["params"]\n'
            "    variable.assign(value.numpy())"
        )

    def _variables(self) -> list[Any]:
        model = self._model
        model.optimizer.build(model.trainable_variables)  # does nothing if it is built
        return [*model.variables, *model.optimizer.variables]
