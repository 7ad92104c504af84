"""Overrides, `--set path=value`: a spec with some values replaced."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from search_spaces.messages import found, shown
from studies.spec.spec_errors import Path, SpecError, dotted, field_at, holds_mapping, model_of, unknown_key
from studies.spec.yaml_reader import read_yaml

FREE_FORM = (("space",), ("search", "pruner"))
"""Paths below which users choose the keys, besides fields that hold a `dict`: parameters, options of a pruner."""


def split_override(override: str) -> tuple[Path, object]:
    """Split `path=value` and read the value as YAML; `SpecError` without `=`, for an empty key or invalid YAML."""
    source = f"--set {shown(override)}"
    text, equals, value = override.partition("=")
    path = tuple(part.strip() for part in text.split("."))
    if not equals or not all(path):
        raise SpecError(source, (), f"{found(override, 'path=value, such as budget.usd=5')}")
    if not value.strip():
        raise SpecError(source, path, "nothing follows the '='. Give a value, or null for none")
    return path, read_yaml(value, source)


def apply_to(model: type[BaseModel], mapping: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Return a deep copy of the mapping with every `path=value` set, later ones over earlier ones.

    `model` defines the paths; below `FREE_FORM` and `dict` fields any path exists. SpecError for other paths.
    """
    changed: dict[str, object] = copy.deepcopy(dict(mapping))
    for override in overrides:
        path, value = split_override(override)
        _check_path(model, path, source=f"--set {shown(override)}")
        _put(changed, path, value, source=f"--set {shown(override)}")
    return changed


def _check_path(model: type[BaseModel], path: Path, source: str) -> None:
    if any(path[: len(free)] == free for free in FREE_FORM):
        return
    for length in range(1, len(path) + 1):
        here = path[:length]
        if _is_index(here[-1]):
            continue
        within = field_at(model, here[:-1])
        if holds_mapping(within):
            return
        if length > 1 and model_of(within) is None:
            problem = f"{shown(dotted(path))} does not exist: {dotted(here[:-1])} is one value, without keys inside"
            raise SpecError(source, here, problem)
        if field_at(model, here) is None:
            raise SpecError(source, here, unknown_key(model, here))


def _put(target: dict[str, object], path: Path, value: object, source: str) -> None:
    here: Any = target
    for depth, part in enumerate(path[:-1]):
        here = _step_into(here, part, path[: depth + 1], source)
    last = path[-1]
    if isinstance(here, list):
        here[_index(here, last, path, source)] = value
    else:
        here[last] = value


def _step_into(here: Any, part: str | int, path: Path, source: str) -> Any:
    if isinstance(here, list):
        position: Any = _index(here, part, path, source)
    else:
        position = part
        if here.get(part) is None:
            here[part] = {}
    if path == ("search", "pruner") and isinstance(here[position], str):
        here[position] = {"name": here[position]}
    if not isinstance(here[position], dict | list):
        raise SpecError(source, path, found(here[position], "a mapping or a list, to set something inside it"))
    return here[position]


def _index(here: list[object], part: str | int, path: Path, source: str) -> int:
    if _is_index(part) and int(part) < len(here):
        return int(part)
    raise SpecError(source, path, found(part, f"an index below {len(here)}"))


def _is_index(part: str | int) -> bool:
    return isinstance(part, int) or (part.isascii() and part.isdigit())
