"""Texts of any kind as one row of token numbers, by a byte-pair tokenizer that loses nothing.

Its alphabet is the 256 bytes, so every text has tokens, and they give back that text. Ranks learn their tokenizers
apart and arrive at the same one, see `trainers.tasks.parts.tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainers.tasks.parts.tokens import Tokens, library

END = 0
"""Token that stands behind each document."""
_END_TEXT = "<|endoftext|>"
FEWEST = 257
"""Fewest tokens of a vocabulary: all bytes, and the end of a document."""


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer learned from texts; `END` is its first token.

    Args:
        texts: The training texts only.
        vocabulary: Largest number of tokens.

    Raises:
        TaskError: The library is not installed.
    """
    tk = library("language_model")
    import tokenizers.decoders

    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[_END_TEXT],
        initial_alphabet=sorted(tk.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def joined(tokenizer: Any, texts: Sequence[str]) -> Tokens:
    """Return the tokens of all texts in a row, int64 [tokens], each text with `END` behind it."""
    rows = [np.asarray([*one.ids, END], dtype=np.int64) for one in tokenizer.encode_batch_fast(list(texts))]
    return np.concatenate(rows)
