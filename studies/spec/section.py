"""Base class of the spec's sections, which checks them in Python as in YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.messages import found, shown
from search_spaces.untrusted_text import storable
from studies.spec.spec_errors import Path, SpecError, SpecValueError, from_validation


def check_texts(raw: object, source: str) -> None:
    """Raise SpecError for texts with NUL or lone surrogates, which the store would change."""
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


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _CheckedCall(ModelMetaclass):
    """Makes a call in Python return a checked section or raise SpecError."""

    def __call__(self, *values: object, **keys: object) -> Any:
        model = cast("type[Section]", self)
        source = f"automl.{model.__name__.removesuffix('Spec')}"
        keys = {**_named(model, values, keys, source), **keys}
        check_texts(keys, source)
        try:
            return super().__call__(**keys)
        except ValidationError as error:
            raise from_validation(error, keys, model, source) from None


class Section(BaseModel, metaclass=_CheckedCall):
    """A section of a spec: immutable, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ADVICE: ClassVar[Mapping[str, str]] = {}
    """Advice for keys that belong elsewhere, by key."""
    WITHOUT_NAME: ClassVar[tuple[str, ...]] = ()
    """Keys that Python code may pass as positional arguments, in order."""

    def given(self) -> dict[str, object]:
        """Return the keys that were set explicitly, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def _named(
    model: type[Section], values: tuple[object, ...], keys: Mapping[str, object], source: str
) -> dict[str, object]:
    names = model.WITHOUT_NAME
    if len(values) > len(names):
        allowed = f"Only {', '.join(names)} may be given without a name" if names else "Name every value"
        raise SpecError(source, (), f"{shown(values[len(names)])} is given without a name. {allowed}")
    named = dict(zip(names, values, strict=False))
    for name in named.keys() & keys.keys():
        raise SpecError(source, (name,), f"found {shown(named[name])} and {shown(keys[name])}. Give one of them")
    return named


_MOST_NESTED = 100
_ALLOWED = f"JSON data: finite numbers, text, lists and mappings, nested at most {_MOST_NESTED} deep"


def check_json(options: Mapping[str, object]) -> None:
    """Raise SpecValueError, with the key as path, for a value that is not JSON or is nested too deeply."""
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
    if not isinstance(value, Mapping | list | tuple):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_nested_within(one, levels - 1) for one in inner)
