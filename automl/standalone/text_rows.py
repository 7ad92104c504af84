"""Encodes texts as token numbers, with the model's tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from .batches import Encoded, encoded
from .errors import InputError

_NO_CHARACTER = "\ufffd"  # replacement character for bytes that are no whole character
CLEANING = ("trimmed", "plain_line_ends")  # cleaning keys of a form. Older models lack them, and clean nothing.


def cleaned(text: str, cleaning: Mapping[str, Any]) -> str:
    """Clean a text as in training: `trimmed` strips spaces, `plain_line_ends` converts Windows line breaks."""
    plain = text.replace("\r\n", "\n") if cleaning.get("plain_line_ends") else text
    return plain.strip() if cleaning.get("trimmed") else plain


class TextRows:
    """Encodes texts as token numbers. Raises ImportError without the package `tokenizers`.

    Args:
        form: `tokenizer`, content of a tokenizer.json; `longest`, number of tokens to keep; `keep`, the end to keep;
            tokens `pad` (None: only texts of equal length share a batch), `unknown` for an empty text and `first` in
            front of each text, or None; keys of `CLEANING`.
    """

    kind = "text"
    dtype = "int64"

    def __init__(self, form: Mapping[str, Any]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(form["tokenizer"])
        self._tokenizer.no_padding()  # another author's file could pad to any length
        self._cleaning = {name: form.get(name) for name in CLEANING}
        self._longest, self._unknown = int(form["longest"]), int(form["unknown"])
        self._keeps_end = form["keep"] == "end"
        if not self._keeps_end:  # the library leaves room for the marks that some tokenizers put around a text
            self._tokenizer.enable_truncation(max_length=self._longest)
        self._first = [] if form["first"] is None else [int(form["first"])]
        self.fill: int | None = form["pad"]
        self.shape = (-1,)

    def encode(self, row: Any, number: int) -> Encoded:
        """Return a text's tokens, int64 [at most `longest`]. Raises InputError if it is no text."""
        if not isinstance(row, str):
            raise InputError(number, f"row {number + 1}: found {type(row).__name__}, allowed: a text")
        try:
            known = self._tokenizer.encode(cleaned(row, self._cleaning)).ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # from the library's Rust code, not an Exception
                raise
            raise InputError(number, f"row {number + 1}: the model's tokenizer fails on this text") from None
        ids = [*self._first, *(known or [self._unknown])]
        kept = ids[-self._longest :] if self._keeps_end else ids[: self._longest]
        return encoded(self.dtype, (len(kept),), kept)

    def names(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts of tokens, or their forms in the vocabulary if these texts are ambiguous or broken."""
        texts = [str(self._tokenizer.decode([number])) for number in numbers]
        tokens = [self._tokenizer.id_to_token(number) or f"token {number}" for number in numbers]
        names = [
            token if not text or _NO_CHARACTER in text or texts.count(text) > 1 else text
            for text, token in zip(texts, tokens, strict=True)
        ]
        return names if len(set(names)) == len(names) else tokens
