"""Checks of `task_options`: each mistake is one line that names the option, what was found and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces.wording import found, nearest
from trainers.protocol import TaskError
from trainers.tasks.table.files import MISSING, Form

_DELIMITER_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}


def choice(value: object, name: str, choices: Sequence[str]) -> str:
    """Return the value of an option that is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise TaskError(f"task_options.{name}: {found(value, ', '.join(choices), nearest(value, choices))}")
    return value


def names(value: object, name: str) -> tuple[str, ...]:
    """Return the value of an option that is a list of columns; one name alone counts as a list of it."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise TaskError(f"task_options.{name}: {found(value, 'a list of names of columns')}")
    return tuple(listed)


def whole(value: object, name: str, *, low: int, high: int) -> int:
    """Return the value of an option that is a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TaskError(f"task_options.{name}: {found(value, f'a whole number from {low} to {high}')}")
    return value


def whole_parameter(params: Mapping[str, object], name: str, default: int, *, low: int, high: int) -> int:
    """Return a trial's parameter that is a whole number."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TaskError(f"{name}: {found(value, f'a whole number from {low} to {high}')}")
    return value


def number_parameter(params: Mapping[str, object], name: str, default: float, *, low: float, high: float) -> float:
    """Return a trial's parameter that is a number."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise TaskError(f"{name}: {found(value, f'a number from {low:g} to {high:g}')}")
    return float(value)


def path(value: object, name: str) -> str:
    """Return the value of an option that names a file or a folder."""
    if not isinstance(value, str) or not value:
        raise TaskError(f"task_options.{name}: {found(value, 'the path of a file')}")
    return value


def form(*, delimiter: object, header: object, encoding: object, missing: object) -> Form:
    """Return what the options say about how a text file is written."""
    if header not in (True, False, None, "auto"):
        raise TaskError(f"task_options.header: {found(header, 'true, false or auto')}")
    if delimiter is not None and (
        not isinstance(delimiter, str) or len(_DELIMITER_WORDS.get(delimiter, delimiter)) != 1
    ):
        raise TaskError(f"task_options.delimiter: {found(delimiter, 'one character, or tab')}")
    if not isinstance(encoding, str):
        raise TaskError(f"task_options.encoding: {found(encoding, 'a name such as utf-8')}")
    return Form(
        delimiter=None if delimiter is None else _DELIMITER_WORDS.get(str(delimiter), str(delimiter)),
        header=None if header in (None, "auto") else bool(header),
        encoding=encoding,
        missing=MISSING if missing is None else ("", *names(missing, "missing")),
    )
