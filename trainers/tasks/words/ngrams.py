"""Numbers of the n-grams of texts. Shapes: n texts, t tokens of the longest one in the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainers.tasks.shared.data_fingerprint import DataMark
from trainers.tasks.words.text_space import count_of
from trainers.tasks.words.tokens import PAD

_COUNTED_AT_ONCE = 4096


class NgramNetwork(nn.Module):
    """The sum of the vectors of a text's tokens and n-grams, and a linear layer: fastText's classifier.

    Joulin et al. 2016 (arXiv 1607.01759); here n-grams are of tokens, and sums are divided by the root of their number.
    A part of each vector begins as what naive Bayes says of the n-gram (`start_from`), after Wang and Manning 2012
    ("Baselines and Bigrams"), so that training begins where a good baseline ends. Input: tokens int64 [n, longest],
    filled up with PAD; output [n, outputs].

    Args:
        longest_ngram: Most tokens of an n-gram, from 1 to 3.
        meaning: What decides the tokens, see `DataMark`.
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
        """Let the last parts of the vectors be logarithms of how much more often each class has the n-gram than others.

        Args:
            targets: Their classes, int64 [n].
        """
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
"""Multipliers of the tokens of an n-gram: products of small numbers with them differ in their low bits."""


class Ngrams:
    """Numbers tokens by themselves, and longer n-grams of tokens by a hash.

    Args:
        longest: Most tokens of an n-gram, from 1 to 3.
    """

    def __init__(self, vocabulary: int, longest: int) -> None:
        self._vocabulary, self._longest = vocabulary, longest
        self.count = count_of(vocabulary, longest)

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of each n-gram, int64 [n, t * longest], and whether it is in the text, bool of that shape.

        Args:
            tokens: Texts, int64 [n, t], filled up with PAD.
        """
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
