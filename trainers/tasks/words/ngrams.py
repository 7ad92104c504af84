"""Text classifiers on n-grams of tokens. Shapes: n texts, t tokens of the longest text in the batch."""

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
from trainers.tasks.words.text_space import MOST_WEIGHTS, count_of
from trainers.tasks.words.tokens import PAD

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_COUNTED_AT_ONCE = 4096


class NgramNetwork(nn.Module):
    """Sums the vectors of a text's n-grams, followed by a linear layer, as fastText does (arXiv 1607.01759).

    N-grams have up to `longest_ngram` (1 to 3) tokens, and a sum is divided by the root of its number of terms. A part
    of each vector starts as the n-gram's naive Bayes estimate (`start_from`), after Wang and Manning 2012 ("Baselines
    and Bigrams"). Input: tokens int64 [n, longest], padded; output: [n, outputs].
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        outputs: int,
        width: int,
        longest_ngram: int,
        dropout: float,
        token_dropout: float,
        meaning: object,
    ) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self._ngrams, self._token_dropout = Ngrams(vocabulary, longest_ngram), token_dropout
        self.vectors = nn.Embedding(self._ngrams.count, width + outputs)
        nn.init.normal_(self.vectors.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width + outputs, outputs)

    @torch.no_grad()
    def start_from(self, tokens: Tensor, targets: Tensor) -> None:
        """Set the last part of each vector to log ratios of the n-gram's frequency in a class and in others."""
        if self.vectors.weight.is_meta:
            return
        outputs = self.head.out_features
        counts = torch.ones(outputs, self.vectors.num_embeddings)
        for part, classes in zip(
            torch.split(tokens, _COUNTED_AT_ONCE), torch.split(targets, _COUNTED_AT_ONCE), strict=True
        ):
            numbers, present = self._ngrams(part)
            ordered, _ = torch.where(present, numbers, -1).sort(dim=1)
            is_first = (ordered != ordered.roll(1, dims=1)) & (ordered >= 0)
            is_first[:, 0] = ordered[:, 0] >= 0
            places = ordered + classes[:, None] * counts.shape[1]
            counts.view(-1).index_add_(0, places[is_first], torch.ones(int(is_first.sum())))
        logs = (counts / counts.sum(dim=1, keepdim=True)).log()
        self.vectors.weight[:, -outputs:] = (logs - logs.mean(dim=0)).T
        self.head.weight[:, -outputs:] = torch.eye(outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, outputs]."""
        numbers, present = self._ngrams(tokens)
        if self.training and self._token_dropout > 0:
            present = present & (torch.rand(present.shape, device=present.device) >= self._token_dropout)
        weights = present.unsqueeze(2).to(self.vectors.weight.dtype)
        summed = (self.vectors(numbers) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0).sqrt()
        outputs: Tensor = self.head(self.dropout(summed))
        return outputs


_PRIMES = (1, 1_000_003, 998_244_353)
"""Multipliers for the tokens of an n-gram, large so that products differ in their low bits."""


class Ngrams:
    """Numbers n-grams: single tokens by themselves, n-grams of 2 to `longest` (at most 3) tokens by a hash."""

    def __init__(self, vocabulary: int, longest: int) -> None:
        self._vocabulary, self._longest = vocabulary, longest
        self.count = count_of(vocabulary, longest)

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return n-grams of padded texts [n, t] as numbers, int64 [n, t * longest], and a mask of present n-grams."""
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        numbers, present = [tokens], [tokens != PAD]
        for size in range(2, self._longest + 1):
            parts = [tokens.roll(-start, dims=1) for start in range(size)]  # slices of a text may be empty
            mixed = tokens.new_tensor(size) + sum(
                part * prime for part, prime in zip(parts, _PRIMES[:size], strict=True)
            )
            numbers.append((mixed ^ (mixed >> 15)) % (self.count - self._vocabulary) + self._vocabulary)
            present.append((parts[-1] != PAD) & (places < length - size + 1))
        return torch.cat(numbers, dim=1), torch.cat(present, dim=1)


BLOCKS, BLOCK_ITERATIONS = 10, 10
"""Number of blocks of L-BFGS iterations in a full training, together as many as in scikit-learn's LogisticRegression.

The optimizer forgets the curvature of the loss between blocks: blocks of one iteration would be steepest descent.
"""
_NGRAMS_AT_ONCE = 2**22

_Array = np.ndarray[Any, np.dtype[Any]]


class TfidfRegression(nn.Module):
    """Logistic regression on TF-IDF of n-grams of up to `longest_ngram` (1 to 3) tokens. Texts are scaled to length 1.

    An n-gram has the weight ln((1 + n) / (1 + texts with it)) + 1 of scikit-learn's TfidfTransformer, or 0 if no
    training text has it; a repeated n-gram counts several times in the length. L-BFGS fits the model, with a share of
    `BLOCKS` per epoch (`trainers.contract.task`). Input: tokens int64 [n, t], padded; output: logits float32 [n, k].

    Args:
        l2: Penalty on squared weights: 1 / C of scikit-learn's LogisticRegression, 2 / C for 2 classes.
    """

    idf: Tensor  # weight of each n-gram, float32 [f]
    bias: Tensor

    def __init__(self, *, vocabulary: int, outputs: int, longest_ngram: int, l2: float, meaning: object) -> None:
        super().__init__()
        self.mark = DataMark(meaning)
        self._ngrams, self._l2 = Ngrams(vocabulary, longest_ngram), l2
        if self._ngrams.count * outputs > MOST_WEIGHTS:
            raise TaskError(
                f"architecture: tfidf with {self._ngrams.count} n-grams and {outputs} classes has more than "
                f"{MOST_WEIGHTS:,} weights. Choose another architecture"
            )
        self.weights = nn.Parameter(torch.zeros(self._ngrams.count, outputs), requires_grad=False)
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("idf", torch.zeros(self._ngrams.count))
        self._features: csr_array | None = None  # of the training texts, in this process

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, k]."""
        numbers, values = self._tfidf(tokens)
        return torch.bmm(values.unsqueeze(1), self.weights[numbers]).squeeze(1) + self.bias

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, threads: int, tick: Callable[[], None],
        seed: int,  # noqa: ARG002 - nothing is random here
    ) -> Tensor:  # fmt: skip
        """Continue the fit with the epoch's share of the blocks; see `GrownModel`."""
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
        from scipy.sparse import csr_array, vstack

        found = []
        for part in self._parts(inputs, tick):
            numbers, values = self._tfidf(part)
            row, place = values.nonzero(as_tuple=True)
            triplets = (values[row, place].double().numpy(), (row.numpy(), numbers[row, place].numpy()))
            found.append(csr_array(triplets, shape=(len(part), self._ngrams.count)))  # sums repeated entries
        return vstack(found, format="csr")

    def _parts(self, inputs: Tensor, tick: Callable[[], None]) -> Iterator[Tensor]:
        """Yield a few texts at a time, to limit memory."""
        for part in torch.split(inputs, max(_NGRAMS_AT_ONCE // (3 * inputs.shape[1]), 1)):
            yield part
            tick()

    def _fit(self, features: csr_array, targets: _Array, iterations: int, tick: Callable[[], None]) -> None:
        """Continue the fit from stored weights (single precision), so that a resumed trial gets equal bits."""
        from scipy.optimize import minimize

        used = np.unique(features.indices)  # other n-grams keep the weight 0
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
    """Return mean cross entropy plus penalty, and the gradient, flat: weights [used, k], then biases [k]."""
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
