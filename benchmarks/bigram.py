"""A table of pairs of tokens: what a language model has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

STRENGTHS = tuple(2.0**power for power in range(-2, 13))
"""Strengths of the prior that are tried: seen tokens that weigh as much as the shares of single tokens."""


class BigramTable:
    """Probabilities of a token after another one, by counting.

    The count c(a, b) of token b after token a is smoothed by the share p(b) of b among all tokens, as a Dirichlet prior
    does: (c(a, b) + s p(b)) / (c(a) + s). p itself is smoothed by one more of each token, so none is impossible.

    Args:
        inputs: Tokens to count, int64 [n, length].
        targets: The token that follows each of them, of the same shape.
        tokens: Number of different tokens.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, tokens: int) -> None:
        pairs = inputs.flatten() * tokens + targets.flatten()
        self._pairs = torch.bincount(pairs, minlength=tokens * tokens).view(tokens, tokens)
        self._before = self._pairs.sum(dim=1)
        single = torch.bincount(targets.flatten(), minlength=tokens) + 1
        self._share = single.double() / single.sum()
        self._strength = 1.0

    def tune(self, inputs: Tensor, targets: Tensor) -> None:
        """Take the strength of the prior that suits other text best."""
        self._strength = min(STRENGTHS, key=lambda strength: self._loss(inputs, targets, strength))

    def loss(self, inputs: Tensor, targets: Tensor) -> float:
        """Return the mean cross entropy of a token in nats."""
        return self._loss(inputs, targets, self._strength)

    def _loss(self, inputs: Tensor, targets: Tensor, strength: float) -> float:
        before, after = inputs.flatten(), targets.flatten()
        counted = self._pairs[before, after] + strength * self._share[after]
        return float(-(counted / (self._before[before] + strength)).log().mean())
