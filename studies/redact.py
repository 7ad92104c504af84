"""Removal of credentials from text for users, logs and browsers."""

from collections.abc import Mapping

from search_spaces.messages import without_password as redact


def redact_deep(value: object) -> object:
    """Return a copy of plain data (mappings, lists, scalars) in which every string, including keys, is redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_deep(key): redact_deep(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_deep(item) for item in value]
    return value


__all__ = ["redact", "redact_deep"]
