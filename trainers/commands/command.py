"""Checks the command in a spec (the task `command` and its options in a study). Does not import torch."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from search_spaces.wording import found, listed

COMMAND = "command"
BUILT_IN_NAMES = ("world_size", "seed", "epochs", "scaled_learning_rate", "checkpoint_folder", "params_file")
"""Names in braces besides parameters and keys of `training`."""
_NAMES_OF_NO_PARAMETER = frozenset(BUILT_IN_NAMES) - {"world_size", "epochs"}
"""Names among them that hide a parameter of the same name."""

Metrics = Literal["report", "json"] | Mapping[str, str]
Problem = tuple[tuple[str | int, ...], str]

_NAME_IN_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PARTS = "a list of texts and numbers, or of lists of them, such as [python, train.py, --lr, '{learning_rate}']"
_METRICS = "report, json, or {pattern: a regular expression with a named group for each metric}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program that trains one trial, started once for each rank; times in seconds.

    Attributes:
        parts: Program and arguments with names in braces; a nested list is left out if the trial lacks its parameter.
        metrics: "report" (`automl.report`), "json" (lines of JSON on rank 0's standard output), or a mapping with the
            regular expression `pattern` for such lines.
        folder: Working folder, relative to the spec's folder.
        end_seconds: Time to end by itself after a request or its last report.
        kill_seconds: Time from SIGTERM to SIGKILL.
        report_seconds: Longest time between two reports; None limits only the first, by `first_report_seconds`.
    """

    parts: tuple[str | tuple[str, ...], ...]
    metrics: Metrics = "report"
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    end_seconds: float = 60.0
    kill_seconds: float = 10.0
    report_seconds: float | None = None
    first_report_seconds: float = 1800.0
    log_mib: float = 8.0

    def report_limit(self, *, is_first: bool) -> tuple[str, float]:
        """Return the key and the seconds of the limit for the next report."""
        if self.report_seconds is not None:
            return "report_seconds", self.report_seconds
        return "first_report_seconds", self.first_report_seconds if is_first else math.inf

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Command:
        """Build the command from a task's options; raises ValueError with a one-line message for a wrong option."""
        for path, problem in problems_of(options):
            raise ValueError(f"{'.'.join(map(str, path))}: {problem}")
        given = {name: value for name, value in options.items() if name != COMMAND}
        parts = tuple(tuple(map(str, p)) if isinstance(p, list | tuple) else str(p) for p in options[COMMAND])
        environment = {name: str(value) for name, value in given.pop("environment", {}).items()}
        return cls(parts=parts, environment=environment, **given)

    def names(self) -> Iterator[tuple[str, bool]]:
        """Yield each name in braces, and True if its argument is optional."""
        for part in self.parts:
            for text in part if isinstance(part, tuple) else (part,):
                yield from ((name, isinstance(part, tuple)) for name in names_in(text))
        for text in self.environment.values():
            yield from ((name, False) for name in names_in(text))


def problems_of(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of a command's options."""
    allowed = (COMMAND, *(one.name for one in fields(Command) if one.name != "parts"))
    for key in options:
        if key not in allowed:
            yield (key,), f"found an unknown key, allowed: {listed(allowed)}"
    parts = options.get(COMMAND)
    if not isinstance(parts, list | tuple) or not parts or not _is_text(parts[0]) or not str(parts[0]).strip():
        yield (COMMAND,), found(parts, _PARTS)
        return
    for index, part in enumerate(parts):
        if not _is_text(part) and not (isinstance(part, list | tuple) and part and all(map(_is_text, part))):
            yield (COMMAND, index), found(part, _PARTS)
    yield from _problems_of_metrics(options.get("metrics", "report"))
    environment = options.get("environment", {})
    if not isinstance(environment, Mapping) or not all(
        isinstance(name, str) and name and "=" not in name and _is_text(value) for name, value in environment.items()
    ):
        yield ("environment",), found(environment, "a mapping of names of variables to texts or numbers")
    if not isinstance(options.get("folder", "."), str):
        yield ("folder",), found(options["folder"], "a folder")
    for key in "end_seconds", "kill_seconds", "report_seconds", "first_report_seconds", "log_mib":
        may_be_none = key == "report_seconds"
        value = options.get(key, 1.0)
        if not (may_be_none and value is None) and not _is_positive(value):
            yield (key,), found(value, "a number above 0" + (", or null" if may_be_none else ""))


def unknown_names(command: Command, parameters: Collection[str], sometimes: Collection[str]) -> Iterator[str]:
    """Yield the problems of the names in braces."""
    for name, may_be_left_out in command.names():
        if name not in parameters and name not in BUILT_IN_NAMES:
            allowed = listed([*parameters, *BUILT_IN_NAMES])
            yield f"found {{{name}}}, allowed in braces: {allowed}; write double braces for plain braces"
        elif name in _NAMES_OF_NO_PARAMETER and name in parameters:
            yield (
                f"{{{name}}} is a value of every trial, and the space has a parameter {name}, too. Rename the parameter"
            )
        elif name in sometimes and not may_be_left_out:
            yield (
                f"{{{name}}} is a parameter that some trials lack. Put its arguments into a nested list, such as "
                f"[--{name}, '{{{name}}}'], which such trials leave out"
            )


def missing_program(command: Command, base_folder: Path, search_path: str) -> str | None:
    """Return the reason why the program cannot run on this machine, or None."""
    program, folder = str(command.parts[0]), base_folder / command.folder
    if not folder.is_dir():
        return f"the folder {command.folder!r} does not exist beside the spec. Create it, or name another"
    if names_in(program):
        return None
    if shutil.which(str(folder / program) if "/" in program else program, path=search_path) is None:
        return f"{program!r} is no program that this machine can run. Install it, or correct its name"
    return None


def search_path() -> str:
    """Return the search path for programs, with this environment's `python` first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def names_in(text: str) -> list[str]:
    """Return the names in braces of a text."""
    return [named[1] for named in _NAME_IN_BRACES.finditer(text) if named[1]]


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with names in braces replaced; doubled braces become single."""
    return _NAME_IN_BRACES.sub(lambda named: values[named[1]] if named[1] else named[0][0], text)


def _problems_of_metrics(metrics: object) -> Iterator[Problem]:
    if isinstance(metrics, Mapping) and metrics.keys() == {"pattern"} and isinstance(metrics["pattern"], str):
        try:
            names = set(re.compile(metrics["pattern"]).groupindex) - {"epoch"}
        except re.error as error:
            yield ("metrics", "pattern"), f"found {metrics['pattern']!r}, which is no regular expression: {error}"
            return
        if not names:
            problem = found(metrics["pattern"], "a regular expression with a named group, (?P<val_error>...)")
            yield ("metrics", "pattern"), problem
    elif metrics not in ("report", "json"):
        yield ("metrics",), found(metrics, _METRICS)


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and "\0" not in str(value)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def as_text(value: object) -> str:
    """Return a value as an argument: a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def arguments(parts: Sequence[str | tuple[str, ...]], values: Mapping[str, str]) -> list[str]:
    """Return a trial's program and arguments: names replaced, lists with missing parameters left out."""
    found_parts: list[str] = []
    for part in parts:
        texts = part if isinstance(part, tuple) else (part,)
        if isinstance(part, tuple) and not all(name in values for text in texts for name in names_in(text)):
            continue
        found_parts += [filled(text, values) for text in texts]
    return found_parts
