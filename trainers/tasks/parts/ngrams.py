"""Numbers of the n-grams of texts. Shapes: n texts, t tokens of the longest one in the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.tasks.parts.ngram_sizes import count_of
from trainers.tasks.parts.tokens import PAD

_PRIMES = (1, 1_000_003, 998_244_353)
"""Multipliers of the tokens of an n-gram: products of small numbers with them differ in their low bits."""


class Ngrams:
    """Numbers tokens by themselves, and longer n-grams of tokens by a hash.

    Args:
        vocabulary: Number of tokens.
        longest: Most tokens of an n-gram, from 1 to 3.

    Attributes:
        count: Number of different numbers.
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
