"""What the sections of a spec have in common: they are frozen, have no unknown keys, and can be written in Python.

`BudgetSpec(usd=1.0)` is checked like the section `budget` of a YAML file, and refused in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.wording import shown
from studies.spec.errors import SpecError, from_validation
from studies.spec.texts import check_texts

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _CheckedCall(ModelMetaclass):
    """Makes a section of a call in Python code, or raises a `SpecError`. Validation makes sections without a call."""

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
    """A part of a spec: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ADVICE: ClassVar[Mapping[str, str]] = {}
    """What to do about keys that people look for here, by key."""
    WITHOUT_NAME: ClassVar[tuple[str, ...]] = ()
    """Keys whose values Python code may give without their names, in this order."""

    def given(self) -> dict[str, object]:
        """Return the keys that were given when the section was made, as a YAML file has them."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def _named(
    model: type[Section], values: tuple[object, ...], keys: Mapping[str, object], source: str
) -> dict[str, object]:
    """Values that were given without a name, by name.

    Raises:
        SpecError: There are too many of them, or one of them was also given by name.
    """
    names = model.WITHOUT_NAME
    if len(values) > len(names):
        allowed = f"{', '.join(names)} without a name" if names else "values with their names"
        raise SpecError(source, (), f"found {shown(values[len(names)])} without a name, allowed: {allowed}")
    named = dict(zip(names, values, strict=False))
    for name in named.keys() & keys.keys():
        both = f"found {shown(named[name])} and {shown(keys[name])}"
        raise SpecError(source, (name,), f"{both}, allowed: one of them")
    return named
