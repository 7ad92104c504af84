"""Hides credentials in text that people, logs or browsers will see."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Greedy up to the last @: a password may itself hold @, / or :. Hiding too much of an odd URL is the safe mistake.
_USER_INFO = re.compile(r"(?<=://)(?:[^\s/:@]*:\S*|[^\s/@]+)@")
_QUERY_SECRET = re.compile(r"(?i)(?<=[?&])((?:password|passwd|pwd|token|secret|access_key|api_key)=)[^&\s\"'#]+")


def redact(text: str) -> str:
    """The text with `user:password@` of every URL in it, and passwords among a URL's query, replaced by `***`."""
    return _QUERY_SECRET.sub(r"\1***", _USER_INFO.sub("***@", text))


def redact_deep(value: object) -> object:
    """A copy of plain data (mappings, lists, scalars) in which every string, keys included, is redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_deep(key): redact_deep(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_deep(item) for item in value]
    return value
