"""Values of a spec that are the user's own: what the store, and all that read a spec, can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping

from search_spaces.wording import found
from studies.spec.errors import SpecValueError

_MOST_NESTED = 100
_ALLOWED = f"what JSON can hold: finite numbers, text, lists, mappings, up to {_MOST_NESTED} in each other"


def check_json(options: Mapping[str, object]) -> None:
    """Check that each value can be stored as JSON, and read back by all that read specs.

    Raises:
        SpecValueError: One cannot; the path is its key.
    """
    for key, value in options.items():
        if not _fits_json(value):
            raise SpecValueError(found(value, _ALLOWED), (key,))


def _fits_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return _nested_within(value, _MOST_NESTED)


def _nested_within(value: object, levels: int) -> bool:
    """Whether lists and mappings are at most so many levels deep."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_nested_within(one, levels - 1) for one in inner)
