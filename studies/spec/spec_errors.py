"""Errors in a spec: one line with the file, the key's path, the value found and the values allowed."""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from search_spaces.messages import UserError, found, listed, nearest, one_line, shown, without_password
from search_spaces.parameters import SpaceError

Path = tuple[str | int, ...]

_LONGEST_PART = 60


class SpecError(UserError):
    """The user's spec is wrong at `path` (keys and indices). `str` is one line."""

    def __init__(self, source: str, path: Path, problem: str, more: int = 0) -> None:
        super().__init__(source, path, problem, more)
        self.source, self.path, self.problem, self.more = source, path, problem, more

    def __str__(self) -> str:
        parts = [self.source, dotted(self.path), self.problem]
        rest = f" (and {self.more} more {'problem' if self.more == 1 else 'problems'})" if self.more else ""
        return one_line(without_password(": ".join(part for part in parts if part) + rest))


class SpecValueError(ValueError):
    """A validator's problem, at a path relative to the validated value."""

    def __init__(self, problem: str, path: Path = ()) -> None:
        super().__init__(problem, path)
        self.problem, self.path = problem, path


def dotted(path: Iterable[str | int]) -> str:
    """Return a path as in `--set`, such as `budget.usd`; cuts very long names."""
    parts = (str(part) for part in path)
    return ".".join(part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}..." for part in parts)


def first_problem(source: str, problems: Sequence[tuple[Path, str]]) -> SpecError:
    """Return an error with the first problem and the number of other problems."""
    path, problem = problems[0]
    return SpecError(source, path, problem, more=len(problems) - 1)


def from_validation(
    error: ValidationError, raw: Mapping[str, object], model: type[BaseModel], source: str
) -> SpecError:
    """Return a SpecError for pydantic's error in the mapping `raw`, which was read from `source`.

    Reports unknown keys first, since another key is often missing because it was misspelt.
    """
    findings = sorted(error.errors(include_url=False), key=lambda finding: finding["type"] != "extra_forbidden")
    problems: dict[Path, tuple[str, object]] = {}  # kind of each problem, and our validators' error
    for finding in findings:
        path = _path_in(raw, finding["loc"], keep_last=finding["type"] == "missing")
        cause = finding.get("ctx", {}).get("error")
        own = cause.path if isinstance(cause, SpecValueError | SpaceError) else ()
        problems.setdefault((*path, *own), (finding["type"], cause))
    # A union reports a problem for each branch; the deepest is the most specific.
    outer = {path[:length] for path in problems for length in range(len(path))}
    deepest = [path for path in problems if path not in outer]
    path = deepest[0]
    return SpecError(source, path, _problem(model, raw, path, *problems[path]), more=len(deepest) - 1)


def _problem(model: type[BaseModel], raw: Mapping[str, object], path: Path, kind: str, cause: object) -> str:
    if isinstance(cause, SpecValueError | SpaceError):
        return cause.problem
    if kind == "extra_forbidden":
        return unknown_key(model, path)
    if kind == "missing":
        return f"found nothing, allowed: {_allowed_at(model, path)}"
    return _refused(model, path, value_at(raw, path))


def unknown_key(model: type[BaseModel], path: Path) -> str:
    """Return the message about an unknown key, with the nearest known key."""
    parent = model_of(field_at(model, path[:-1])) if path[1:] else model
    keys = list(parent.model_fields) if parent is not None else []
    key = path[-1]
    if key in (advice := getattr(parent, "ADVICE", {})):
        return f"found the unknown key {shown(key)}; {advice[key]}"
    is_whole_spec = "study" in model.model_fields  # a section alone does not know other sections' keys
    elsewhere = inner_keys(model) if is_whole_spec and len(path) <= 2 else {}
    hint = nearest(key, keys) or elsewhere.get(str(key))
    return f"found the unknown key {found(key, listed(keys) or 'no key', hint).removeprefix('found ')}"


def field_at(model: type[BaseModel], path: Path) -> FieldInfo | None:
    """Return the model's field at a path, ignoring list indices, or None."""
    field: FieldInfo | None = None
    here: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int) or part.isdigit():
            continue
        field = here.model_fields.get(part) if here is not None else None
        here = model_of(field)
        if field is None:
            return None
    return field


def model_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model that a field contains, also inside a tuple or union, or None."""
    return next(iter(_inside(field, lambda part: isinstance(part, type) and issubclass(part, BaseModel))), None)


def holds_mapping(field: FieldInfo | None) -> bool:
    """Return whether a field contains a mapping with keys that users choose, also inside a tuple or union."""
    return bool(_inside(field, lambda part: dict in {part, typing.get_origin(part)}))


def value_at(raw: object, path: Path) -> object:
    """Return the value at a path inside mappings and lists, or None."""
    for part in path:
        if isinstance(raw, Mapping):
            raw = raw.get(part)
        elif isinstance(raw, list | tuple) and isinstance(part, int) and 0 <= part < len(raw):
            raw = raw[part]
        else:
            return None
    return raw


def _inside(field: FieldInfo | None, wanted: Callable[[object], bool]) -> list[typing.Any]:
    hits: list[typing.Any] = []
    waiting: list[object] = [field.annotation] if field is not None else []
    while waiting:
        part = waiting.pop(0)
        if wanted(part):
            hits.append(part)
        elif typing.get_origin(part) is not Literal:
            waiting.extend(typing.get_args(part))
    return hits


def _path_in(raw: object, loc: Path, *, keep_last: bool) -> Path:
    """Return pydantic's location without the names of union branches."""
    path: list[str | int] = []
    for part in loc:
        if (isinstance(raw, Mapping) and part in raw) or (isinstance(raw, list | tuple) and isinstance(part, int)):
            raw = value_at(raw, (part,))
            path.append(part)
    return (*path, loc[-1]) if keep_last else tuple(path)


def _allowed_at(model: type[BaseModel], path: Path) -> str:
    while path and field_at(model, path) is None:  # the user chooses the keys inside this value
        path = path[:-1]
    field = field_at(model, path)
    if field is not None and field.description and not (path and isinstance(path[-1], int)):
        return field.description
    inner = model_of(field)
    return f"a mapping with the keys {listed(inner.model_fields)}" if inner is not None else "another value"


def _refused(model: type[BaseModel], path: Path, value: object) -> str:
    words = [
        word
        for literal in _inside(field_at(model, path), lambda part: typing.get_origin(part) is Literal)
        for word in typing.get_args(literal)
        if isinstance(word, str)
    ]
    return found(value, _allowed_at(model, path), nearest(value, words))


def inner_keys(model: type[BaseModel]) -> dict[str, str]:
    """Return the path of each key inside a section, such as `training.epochs`; of equal keys, the first."""
    found_keys: dict[str, str] = {}
    for name, field in model.model_fields.items():
        inner = model_of(field)
        for key in inner.model_fields if inner is not None else ():
            found_keys.setdefault(key, f"{name}.{key}")
    return found_keys
