"""Logistic regression on the TF-IDF of n-grams, the usual baseline for texts.

Shapes: n texts, t tokens of the longest one in the batch, m n-grams of it, f different n-grams, k classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from trainers.protocol import TaskError
from trainers.tasks.shared.data_fingerprint import DataMark
from trainers.tasks.words.ngrams import Ngrams
from trainers.tasks.words.text_space import MOST_WEIGHTS

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BLOCKS, BLOCK_ITERATIONS = 10, 10
"""Blocks of L-BFGS iterations of a full training, as many iterations as in scikit-learn's LogisticRegression.

The optimizer begins each anew, without what it has learnt of the loss's curvature: blocks of one iteration would be
steepest descent.
"""
_NGRAMS_AT_ONCE = 2**22

_Array = np.ndarray[Any, np.dtype[Any]]


class TfidfRegression(nn.Module):
    """Weighs each n-gram by how rare it is, scales each text to length 1, and adds up what its n-grams say of a class.

    An n-gram has the weight ln((1 + n) / (1 + texts that have it)) + 1 of scikit-learn's TfidfTransformer, one of no
    training text none; an n-gram that a text repeats counts as several in the text's length, which spares sorting them.
    It is fitted by L-BFGS, not by gradient steps on batches (`trainers.model.grown_model`): an epoch is its share
    of the `BLOCKS` of iterations. Input: tokens int64 [n, t], filled up with PAD; output: logits float32 [n, k].

    Args:
        longest_ngram: Most tokens of an n-gram, from 1 to 3.
        l2: Strength of the penalty on squared weights, 1 / C of scikit-learn's LogisticRegression for three classes and
            more, 2 / C for two, which have weights of their own each.
        meaning: What decides the tokens, see `DataMark`.
    """

    idf: Tensor
    """Weight of each n-gram, float32 [f]."""
    bias: Tensor

    def __init__(self, *, vocabulary: int, outputs: int, longest_ngram: int, l2: float, meaning: object) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self._ngrams, self._l2 = Ngrams(vocabulary, longest_ngram), l2
        if self._ngrams.count * outputs > MOST_WEIGHTS:
            raise TaskError(
                f"architecture: found tfidf with {self._ngrams.count} n-grams and {outputs} classes, allowed: at most "
                f"{MOST_WEIGHTS:,} weights; take another architecture"
            )
        self.weights = nn.Parameter(torch.zeros(self._ngrams.count, outputs), requires_grad=False)
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("idf", torch.zeros(self._ngrams.count))
        self._features: csr_array | None = None  # of the training texts, for as long as a trial is in one process

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, k]."""
        numbers, values = self._tfidf(tokens)
        return torch.bmm(values.unsqueeze(1), self.weights[numbers]).squeeze(1) + self.bias

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, threads: int, tick: Callable[[], None],
        seed: int,  # noqa: ARG002 - nothing is random here
    ) -> Tensor:  # fmt: skip
        """Go on with the fit for the epoch's blocks; see `trainers.model.grown_model.GrownModel`."""
        if epoch == 1:
            self.idf.copy_(self._rarity(inputs, tick))
        if self._features is None:
            self._features = self._matrix(inputs, tick)
        blocks = math.ceil(BLOCKS * epoch / epochs) - math.ceil(BLOCKS * (epoch - 1) / epochs)
        if blocks:
            with threadpool_limits(threads):
                self._fit(self._features, targets.numpy(), BLOCK_ITERATIONS * blocks, tick)
        return torch.from_numpy(self._features @ self.weights.numpy()).float() + self.bias

    def _tfidf(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of a text's n-grams and what each is worth in it, both [n, m]."""
        numbers, present = self._ngrams(tokens)
        values = self.idf[numbers] * present
        return numbers, values / values.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)

    def _rarity(self, inputs: Tensor, tick: Callable[[], None]) -> Tensor:
        texts = torch.zeros(self._ngrams.count)
        for part in self._parts(inputs, tick):
            numbers, present = self._ngrams(part)
            row = torch.arange(len(part))[:, None].expand_as(numbers)
            once = torch.unique(torch.stack([row[present], numbers[present]]), dim=1)[1]
            texts += torch.bincount(once, minlength=self._ngrams.count)
        return torch.where(texts > 0, ((1 + len(inputs)) / (1 + texts)).log() + 1, 0.0)

    def _matrix(self, inputs: Tensor, tick: Callable[[], None]) -> csr_array:
        """Return what the n-grams of each training text are worth, float64 [n, f]."""
        from scipy.sparse import csr_array, vstack

        found = []
        for part in self._parts(inputs, tick):
            numbers, values = self._tfidf(part)
            row, place = values.nonzero(as_tuple=True)
            triplets = (values[row, place].double().numpy(), (row.numpy(), numbers[row, place].numpy()))
            found.append(csr_array(triplets, shape=(len(part), self._ngrams.count)))  # sums those that are repeated
        return vstack(found, format="csr")

    def _parts(self, inputs: Tensor, tick: Callable[[], None]) -> Iterator[Tensor]:
        """Yield some texts at a time, so that their n-grams take little memory."""
        for part in torch.split(inputs, max(_NGRAMS_AT_ONCE // (3 * inputs.shape[1]), 1)):
            yield part
            tick()

    def _fit(self, features: csr_array, targets: _Array, iterations: int, tick: Callable[[], None]) -> None:
        """Go on from the weights as they are stored, in single precision, so that a resumed trial comes to the same."""
        from scipy.optimize import minimize

        used = np.unique(features.indices)  # all others keep the weight 0
        narrow, outputs = features[:, used], len(self.bias)
        start = np.concatenate([self.weights.numpy()[used].ravel(), self.bias.numpy()]).astype(np.float64)
        found = minimize(
            _penalised_loss, start, args=(narrow, targets, self._l2, tick), jac=True, method="L-BFGS-B",
            options={"maxiter": iterations, "gtol": 1e-4 / len(targets)},
        ).x  # fmt: skip
        self.weights[torch.from_numpy(used).long()] = torch.from_numpy(found[:-outputs]).float().view(-1, outputs)
        self.bias.copy_(torch.from_numpy(found[-outputs:]))


def _penalised_loss(
    flat: _Array, features: Any, targets: _Array, l2: float, tick: Callable[[], None]
) -> tuple[float, _Array]:
    """Mean cross entropy with the penalty's share, and its gradient by weights [used, k] and biases [k], flat."""
    from scipy.special import log_softmax

    tick()
    texts, outputs = features.shape[0], len(flat) // (features.shape[1] + 1)
    weights, bias = flat[:-outputs].reshape(-1, outputs), flat[-outputs:]
    logs = log_softmax(features @ weights + bias, axis=1)
    rows = np.arange(texts)
    loss = l2 / 2 * np.square(weights).sum() - logs[rows, targets].sum()
    errors = np.exp(logs)
    errors[rows, targets] -= 1.0
    gradient = np.concatenate([(features.T @ errors + l2 * weights).ravel(), errors.sum(axis=0)])
    return float(loss) / texts, gradient / texts
