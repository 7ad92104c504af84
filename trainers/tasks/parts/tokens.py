"""Texts as rows of token numbers, by a tokenizer learned from the training texts or taken from a checkpoint.

This is the home of `tokenizers` (Hugging Face), chosen since it is kept up, installs without other heavy packages,
trains on tens of thousands of sentences in a second, and reads the `tokenizer.json` of published checkpoints.
Training is deterministic: the same texts give the same tokenizer in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainers.protocol import TaskError

Tokens = np.ndarray[Any, np.dtype[np.int64]]
"""Token numbers, int64 [texts, length]; `PAD` fills up."""

KINDS = ("bpe", "wordpiece", "unigram")
PAD, UNKNOWN, MASK = 0, 1, 2
_SPECIAL = ("[PAD]", "[UNK]", "[MASK]")


def train_tokenizer(texts: Sequence[str], *, kind: str, vocabulary: int, lowercase: bool) -> Any:
    """Return a tokenizer of `kind` learned from texts; PAD, UNKNOWN and MASK are its first tokens.

    Args:
        texts: The training texts only.
        kind: One of `KINDS`.
        vocabulary: Most tokens, special ones included.
        lowercase: Whether capitals are small letters; accents go with them.

    Raises:
        TaskError: The library is not installed.
    """
    tk = library()
    models = {
        "bpe": lambda: tk.models.BPE(unk_token=_SPECIAL[UNKNOWN]),
        "wordpiece": lambda: tk.models.WordPiece(unk_token=_SPECIAL[UNKNOWN]),
        "unigram": tk.models.Unigram,
    }
    trainers = {
        "bpe": lambda **common: tk.trainers.BpeTrainer(min_frequency=2, **common),
        "wordpiece": lambda **common: tk.trainers.WordPieceTrainer(min_frequency=2, **common),
        "unigram": lambda **common: tk.trainers.UnigramTrainer(unk_token=_SPECIAL[UNKNOWN], **common),
    }
    tokenizer = tk.Tokenizer(models[kind]())
    forms = [tk.normalizers.NFD(), tk.normalizers.Lowercase(), tk.normalizers.StripAccents()]
    tokenizer.normalizer = tk.normalizers.Sequence(forms) if lowercase else tk.normalizers.NFC()
    # Without a mark where words begin, the pieces of a word look like words to BPE and Unigram.
    spaces = [tk.pre_tokenizers.BertPreTokenizer()]
    spaces += [] if kind == "wordpiece" else [tk.pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(spaces)
    trainer = trainers[kind](vocab_size=vocabulary, special_tokens=list(_SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(checkpoint: str) -> Any:
    """Return the tokenizer of a checkpoint: the tokenizer.json of a folder, or of a name on the Hugging Face hub.

    Raises:
        TaskError: The library is not installed, or there is no such tokenizer.
    """
    tk = library()
    file = Path(checkpoint) / "tokenizer.json"
    if not file.is_file() and Path(checkpoint).is_dir():
        raise TaskError(f"{checkpoint}: found no tokenizer.json in the folder, allowed: a checkpoint with one")
    try:
        return tk.Tokenizer.from_file(str(file)) if file.is_file() else tk.Tokenizer.from_pretrained(checkpoint)
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        reason = " ".join(str(error).split())[:120]
        allowed = "a folder with a tokenizer.json, or a name on the Hugging Face hub"
        raise TaskError(f"task_options.checkpoint: found {checkpoint!r} ({reason}), allowed: {allowed}") from None


def to_matrix(tokenizer: Any, texts: Sequence[str], *, longest: int, pad: int = PAD) -> Tokens:
    """Return the texts' tokens, int64 [texts, at most `longest`]; a text without tokens is one unknown token."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=longest)
    rows = [one.ids or [UNKNOWN] for one in tokenizer.encode_batch_fast(list(texts))]
    matrix = np.full((len(rows), max(map(len, rows), default=1)), pad, dtype=np.int64)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = row
    return matrix


def library() -> Any:
    """Return the package `tokenizers`.

    Raises:
        TaskError: It is not installed; the message says how to.
    """
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise TaskError("the task text needs the package tokenizers: pip install 'automl-search[text]'") from None
    return tokenizers
