"""Checks values of `task_options`. A TaskError names the option, the value and the allowed values."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from search_spaces.messages import found, listed, nearest, shown
from trainers.protocol import TaskError
from trainers.tasks.table.files import MISSING, Form

_DELIMITER_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}


def choice(value: object, name: str, choices: Sequence[str]) -> str:
    """Return `value`. Raises TaskError unless it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise TaskError(f"task_options.{name}: {found(value, ', '.join(choices), nearest(value, choices))}")
    return value


def names(value: object, name: str) -> tuple[str, ...]:
    """Return columns, listed or a single name, as a tuple. Raises TaskError."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise TaskError(f"task_options.{name}: {found(value, 'a list of names of columns')}")
    return tuple(listed)


def whole(value: object, name: str, *, low: int, high: int, place: str = "task_options.") -> int:
    """Return `value`. Raises TaskError unless it is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TaskError(f"{place}{name}: {found(value, f'a whole number from {low} to {high}')}")
    return value


def whole_parameter(params: Mapping[str, object], name: str, default: int, *, low: int, high: int) -> int:
    """Return a trial's parameter. Raises TaskError unless it is a whole number from `low` to `high`."""
    return whole(params.get(name, default), name, low=low, high=high, place="")


def number_parameter(params: Mapping[str, object], name: str, default: float, *, low: float, high: float) -> float:
    """Return a trial's parameter. Raises TaskError unless it is a number from `low` to `high`."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise TaskError(f"{name}: {found(value, f'a number from {low:g} to {high:g}')}")
    return float(value)


def path(value: object, name: str) -> str:
    """Return `value`. Raises TaskError unless it is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TaskError(f"task_options.{name}: {found(value, 'the path of a file')}")
    return value


def form(*, delimiter: object, header: object, encoding: object, missing: object, reading: int = 1) -> Form:
    """Return a text file's format from the task's options. `reading` is the version of the reading rules.

    In version 2, `missing` adds to the usual words for missing values; in version 1 it replaces them.
    """
    if header not in (True, False, None, "auto"):
        raise TaskError(f"task_options.header: {found(header, 'true, false or auto')}")
    if delimiter is not None and (
        not isinstance(delimiter, str) or len(_DELIMITER_WORDS.get(delimiter, delimiter)) != 1
    ):
        raise TaskError(f"task_options.delimiter: {found(delimiter, 'one character, or tab')}")
    if not isinstance(encoding, str):
        raise TaskError(f"task_options.encoding: {found(encoding, 'a name such as utf-8')}")
    if isinstance(missing, list | tuple):
        missing = [str(one) if type(one) in {int, float} else one for one in missing]
    own = () if missing is None else names(missing, "missing")
    usual = MISSING if missing is None or reading > 1 else ("",)
    return Form(
        reading=reading,
        late=tuple(word for word in usual if word and word not in own) if reading > 1 else (),
        delimiter=None if delimiter is None else _DELIMITER_WORDS.get(str(delimiter), str(delimiter)),
        header=None if header in (None, "auto") else bool(header),
        encoding=encoding,
        missing=(*usual, *(word for word in own if word not in usual)),
    )


def check_rows(rows: Sequence[Mapping[str, object]], *, known: Sequence[str], needed: Sequence[str]) -> None:
    """Raise TaskError for rows that are not mappings, lack columns, or have unknown columns.

    Missing values must be None, because a forgotten column would silently give a prediction from the others.
    """
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            problem = f"found {shown(row)}, allowed: a mapping from each column to its value: {listed(needed)}"
            raise TaskError(f"rows: row {number}: {problem}")
        check_columns(f"rows: row {number}", list(row), known=known, needed=needed, absent="None for a missing value")


def check_columns(
    where: str, names: Sequence[object], *, known: Sequence[str], needed: Sequence[str], absent: str = ""
) -> None:
    """Raise TaskError for unknown or missing columns. `absent` explains in the message how to give a missing value."""
    unknown = [name for name in names if name not in known]
    missing = [name for name in needed if name not in names]
    if not unknown and not missing:
        return
    found = [f"the unknown column{'s' * (len(unknown) > 1)} {listed(map(shown, unknown))}"] if unknown else []
    found += [f"no column {listed(map(shown, missing))}"] if missing else []
    near = nearest(unknown[0], missing or known) if unknown else None
    allowed = f"{listed(needed)}{f'; {absent}' if absent else ''}{f'; did you mean {shown(near)}?' if near else ''}"
    raise TaskError(f"{where}: found {' and '.join(found)}, allowed: {allowed}")


def check_kind(rows: Iterable[object], kinds: tuple[type, ...], what: str) -> None:
    """Raise TaskError unless `rows` is a list of values of the given types."""
    if isinstance(rows, str | Path | Mapping):
        raise TaskError(f"rows: found {shown(rows)}, allowed: a list of {what}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, kinds):
            raise TaskError(f"rows: row {number}: found {shown(row)}, allowed: a list of {what}")
