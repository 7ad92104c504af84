"""Makes text safe: `storable` for stores, `escaped` for terminals, `redact` without credentials."""

import re
from collections.abc import Mapping
from typing import Any

from search_spaces.messages import without_password as redact

LONGEST_STORED = 100_000  # largest number of characters of a stored text; the middle of a longer text is left out

_NOTE_CHARACTERS = 60  # number of characters reserved for the line about the left-out middle
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
_NOT_PRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline; ESC starts ANSI sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb\ud800-\udfff]"  # line separators, invisible marks, lone surrogates
)


def storable(text: str, most: int = LONGEST_STORED) -> str:
    """Escape NUL and lone surrogates, and shorten a long text. Repeated calls change nothing more.

    SQLite's driver refuses lone surrogates (file names that are not UTF-8), PostgreSQL also NUL.
    """
    if not text.isascii() or "\x00" in text:  # a quick test, so that most texts skip the substitution
        text = _NOT_STORABLE.sub(_as_escape, text)
    if len(text) <= most + _NOTE_CHARACTERS:
        return text
    half = most // 2
    end = len(text) - half
    return f"{text[:half]}\n[... {end - half} characters are left out ...]\n{text[end:]}"


def last_line(text: str, otherwise: str = "") -> str:
    """Return the last line of a text, such as a traceback's error, or `otherwise` for an empty text."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else otherwise


def storable_deep(value: Any) -> Any:
    """Return a copy of plain data (mappings, lists, scalars) with storable strings, including keys."""
    if value is None or isinstance(value, float | int):
        return value
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable_deep(key): storable_deep(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_deep(item) for item in value]
    return value


def escaped(text: str) -> str:
    r"""Replace control characters by escapes such as `\x1b`. Tabs and newlines stay.

    Terminals obey control characters: a message could move the cursor, set the title, or write the clipboard.
    """
    return _NOT_PRINTABLE.sub(_as_escape, text)


def _as_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code > 0xFF:
        return f"\\u{code:04x}"
    return {"\r": "\\r"}.get(found[0], f"\\x{code:02x}")


def redact_deep(value: object) -> object:
    """Return a copy of plain data (mappings, lists, scalars) with redacted strings, including keys."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_deep(key): redact_deep(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_deep(item) for item in value]
    return value


__all__ = ["redact", "redact_deep"]
