"""Weights averaged over the steps, which are often better than the last ones: they are evaluated and delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainers.stored_state import given, given_weights, own_rows, take
from trainers.stored_tensors import Piece, StoredTensor


class Average:
    """An exponential moving average of trainable parameters; buffers are taken as they are.

    After step t the decay is min(decay, (1 + t) / (10 + t)), so that the random initial weights are soon forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay, self._module = decay, module
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._live = [own_rows(parameter)[0] for parameter in self._parameters.values()]
        self._averaged = [parameter.clone() for parameter in self._live]

    def update(self, step: int) -> None:
        """Take in the weights after `step` steps, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._live, 1.0 - decay)

    def load(self, weights: Mapping[str, Tensor | StoredTensor]) -> None:
        """Take the average from a checkpoint's weights.

        Raises:
            KeyError: One is not among them.
            ValueError: One is of another shape.
        """
        for (name, parameter), averaged in zip(self._parameters.items(), self._averaged, strict=True):
            take(weights[name], parameter, averaged)

    def other_weights(self) -> dict[str, Tensor | Piece]:
        """Return what this rank gives to a checkpoint of the weights that the model has not at this moment.

        Inside `applied` those are the weights that the training goes on with.
        """
        other = {
            id(parameter): averaged
            for parameter, averaged in zip(self._parameters.values(), self._averaged, strict=True)
        }
        return given_weights(self._module) | {
            name: given(parameter, other[id(parameter)])
            for name, parameter in self._module.state_dict(keep_vars=True).items()
            if id(parameter) in other
        }

    def swap(self) -> None:
        """Put the average into the model and the model's weights here, or back."""
        for live, averaged in zip(self._live, self._averaged, strict=True):
            kept = live.clone()
            live.copy_(averaged)
            averaged.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the average inside."""
        self.swap()
        try:
            yield
        finally:
            self.swap()
