"""Texts in a spec that no database takes."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.outside_text import storable
from search_spaces.wording import shown
from studies.spec.errors import Path, SpecError


def check_texts(raw: object, source: str) -> None:
    """Refuse NUL and lone surrogates: a parameter could not be read back from the store as it was drawn.

    Raises:
        SpecError: A text or a key has one of them.
    """
    waiting: list[tuple[object, Path]] = [(raw, ())]
    seen: set[int] = set()  # an alias of YAML may lead back to its own list
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, str):
            if storable(value, len(value)) != value:
                raise SpecError(source, path, f"found {shown(value)}, allowed: text without NUL and lone surrogates")
        elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            named = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in named:
                waiting += [(key, path), (inner, (*path, key if isinstance(key, int) else str(key)))]
