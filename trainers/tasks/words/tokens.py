"""Turns texts into token numbers, by a tokenizer trained on the training texts or from a checkpoint.

Only this module of `trainers` imports `tokenizers`. Each rank trains its own tokenizer, and all must be equal, so only
BPE is used: in version 0.23, WordPiece and Unigram break ties by the order of a hash map
(https://github.com/huggingface/tokenizers/issues/1794). Language models use byte-level BPE, which loses nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.messages import install_command
from trainers.protocol import TaskError

_USUAL = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")


def pad_of(tokenizer: Any, checkpoint: str) -> int:
    """Return a checkpoint's padding token, by a usual name or from the checkpoint's files. Raises TaskError.

    Only added tokens are allowed: the model ignores padding, so no text may contain this token.
    """
    usual = next((number for number in map(tokenizer.token_to_id, _USUAL) if number is not None), None)
    if usual is not None:
        return int(usual)
    added = tokenizer.get_added_tokens_decoder()
    said = next((number for number in _said(tokenizer, checkpoint) if number in added), None)
    if said is None:
        allowed = "a pad_token in its tokenizer_config.json, or pad_token_id or eos_token_id in its config.json"
        problem = f"{checkpoint!r} has no special token for padding shorter texts"
        raise TaskError(f"task_options.checkpoint: {problem}. It needs {allowed}")
    return said


def _said(tokenizer: Any, checkpoint: str) -> Iterator[int]:
    from transformers import PretrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    name = get_tokenizer_config(checkpoint).get("pad_token")
    number = tokenizer.token_to_id(str(name["content"] if isinstance(name, dict) else name))
    if number is not None:
        yield number
    try:
        config, _ = PretrainedConfig.get_config_dict(checkpoint)
    except OSError:
        return
    for key in ("pad_token_id", "eos_token_id"):
        named = config.get(key)
        yield from (one for one in (named if isinstance(named, list) else [named]) if isinstance(one, int))


END = 0  # token after each document
_END_TEXT = "<|endoftext|>"
FEWEST = 257  # fewest tokens of a vocabulary: all bytes and the end of a document


def train_byte_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on texts. `END` is its first token."""
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


def joined(tokenizer: Any, texts: Sequence[str]) -> "Tokens":
    """Return the tokens of all texts, int64 [tokens], with `END` after each text."""
    rows = [np.asarray([*one.ids, END], dtype=np.int64) for one in tokenizer.encode_batch_fast(list(texts))]
    return np.concatenate(rows)


Tokens = np.ndarray[Any, np.dtype[np.int64]]  # token numbers, int64 [texts, length]; `PAD` fills up

PAD, UNKNOWN, MASK = 0, 1, 2
_SPECIAL = ("[PAD]", "[UNK]", "[MASK]")


def train_tokenizer(texts: Sequence[str], *, vocabulary: int, lowercase: bool) -> Any:
    """Return a BPE tokenizer trained on texts, first PAD, UNKNOWN, MASK. `lowercase` ignores case and accents."""
    tk = library()
    tokenizer = tk.Tokenizer(tk.models.BPE(unk_token=_SPECIAL[UNKNOWN]))
    forms = [tk.normalizers.NFD(), tk.normalizers.Lowercase(), tk.normalizers.StripAccents()]
    tokenizer.normalizer = tk.normalizers.Sequence(forms) if lowercase else tk.normalizers.NFC()
    # Metaspace marks the start of each word, to distinguish a word from the end of another word.
    spaces = [tk.pre_tokenizers.BertPreTokenizer(), tk.pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(spaces)
    trainer = tk.trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, special_tokens=list(_SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(checkpoint: str) -> Any:
    """Return a checkpoint's tokenizer, from a folder or the Hugging Face hub. Raises TaskError."""
    tk = library()
    file = Path(checkpoint) / "tokenizer.json"
    if not file.is_file() and Path(checkpoint).is_dir():
        raise TaskError(f"{checkpoint}: no tokenizer.json in this folder. Name a checkpoint with this file")
    try:
        return tk.Tokenizer.from_file(str(file)) if file.is_file() else tk.Tokenizer.from_pretrained(checkpoint)
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        reason = " ".join(str(error).split())[:120]
        allowed = "a folder with a tokenizer.json, or a name on the Hugging Face hub"
        raise TaskError(f"task_options.checkpoint: found {checkpoint!r} ({reason}), allowed: {allowed}") from None


def to_matrix(tokenizer: Any, texts: Sequence[str], *, longest: int, pad: int = PAD) -> Tokens:
    """Return the texts' tokens, int64 [texts, at most `longest`]. An empty text becomes one unknown token."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=longest)
    rows = [one.ids or [UNKNOWN] for one in tokenizer.encode_batch_fast(list(texts))]
    matrix = np.full((len(rows), max(map(len, rows), default=1)), pad, dtype=np.int64)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = row
    return matrix


def form_of(
    tokenizer: Any,
    *,
    longest: int,
    pad: int | None,
    keep: str = "start",
    unknown: int = UNKNOWN,
    first: int | None = None,
) -> dict[str, Any]:
    """Describe the steps from texts to tokens as plain values, for `automl.standalone.text_rows`."""
    plain = type(tokenizer).from_str(tokenizer.to_str())  # a copy, because the weights' fingerprint has the original
    plain.no_padding()
    plain.no_truncation()
    rest = {"longest": longest, "keep": keep, "pad": pad, "unknown": unknown, "first": first}
    return {"kind": "text", "tokenizer": plain.to_str(), **rest}


def library(task: str = "text") -> Any:
    """Return the package `tokenizers`. Raises TaskError if it is not installed."""
    try:
        import tokenizers
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise TaskError(
            f"the task {task} needs the package tokenizers. Install it: {install_command('text')}"
        ) from None
    return tokenizers
