"""Checks the command in a spec: the task `command` and its options. Does not import torch."""

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

from search_spaces.messages import found, listed, nearest

COMMAND = "command"
HOW_TO_KEEP = "To keep models, save into {checkpoint_folder} before printing or reporting an epoch."
BUILT_IN_NAMES = (
    "world_size", "seed", "study", "trial", "attempt", "epochs", "scaled_learning_rate", "checkpoint_folder",
    "trial_folder", "params_file",
)  # fmt: skip
"""Names that may be in braces, besides parameters and keys of `training`."""
_NAMES_OF_NO_PARAMETER = frozenset(BUILT_IN_NAMES) - {"world_size", "epochs"}
"""Names in braces that would hide a parameter of the same name."""

Metrics = Literal["report", "json"] | Mapping[str, str | Sequence[str]]
Problem = tuple[tuple[str | int, ...], str]

_NAME_IN_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PARTS = "a list of texts and numbers, or of lists of them, such as [python, train.py, --lr, '{learning_rate}']"
_FLAG = re.compile(r"(--?)\{([A-Za-z_][A-Za-z0-9_-]*)\}")
"""An argument that has a parameter's name: --{amp}, or --{use-amp} for the parameter use_amp."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_METRICS = (
    "report, json, {json_file: a file of JSON lines}, {pattern: a regular expression with a named group for each "
    "metric, or a list of them}, or {wandb: NAMES} or {tensorboard: NAMES} with a list of logged names"
)
LOGGERS = ("wandb", "tensorboard")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program that trains one trial, started once for each rank. Times are in seconds.

    Attributes:
        parts: Program and arguments with names in braces. A trial that lacks the parameter of a nested list omits it.
        metrics: "report" (`automl.report`), "json" (JSON lines in rank 0's output), or a mapping with a file of JSON
            lines (`json_file`), with one or more regular expressions for output lines (`pattern`), or with the names
            that complete an epoch once they are logged (`wandb`, `tensorboard`).
        epoch_from: Expression for the epoch of a line, see `EpochNumber`; None takes the line's `epoch`.
        folder: Working folder, relative to the spec's folder, with names in braces.
        end_seconds: Time for the program to end by itself, after a request or its last report.
        kill_seconds: Time from SIGTERM to SIGKILL.
        report_seconds: Limit for each report; None limits only the first, to `first_report_seconds`.
        preload: Modules to import once for many trials, in a process that is forked.
    """

    parts: tuple[str | tuple[str, ...], ...]
    metrics: Metrics = "report"
    epoch_from: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    end_seconds: float = 60.0
    kill_seconds: float = 10.0
    report_seconds: float | None = None
    first_report_seconds: float = 1800.0
    log_mib: float = 8.0
    preload: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Regular expressions for output lines."""
        given = self.metrics.get("pattern", ()) if isinstance(self.metrics, Mapping) else ()
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def logged(self) -> dict[str, str]:
        """Metrics by the names under which the program logs them to W&B or TensorBoard; empty without such names."""
        given = self.metrics if isinstance(self.metrics, Mapping) else {}
        return {name: metric_of(name) for key in LOGGERS for name in given.get(key, ())}

    @property
    def calls_us(self) -> bool:
        """Return whether the program's reports are calls of `automl.report`, its own or calls of a watched logger."""
        return self.metrics == "report" or bool(self.logged)

    @property
    def json_file(self) -> str:
        """File of JSON lines, relative to the working folder, with names in braces; empty if there is none."""
        return str(self.metrics.get("json_file", "")) if isinstance(self.metrics, Mapping) else ""

    @property
    def has_own_folder(self) -> bool:
        """Return whether each trial has its own working folder, with names in braces."""
        return bool(names_in(self.folder))

    def script_folder(self, base_folder: Path) -> Path:
        """Return the base of relative paths in the command."""
        return base_folder if self.has_own_folder else base_folder / self.folder

    @property
    def epoch_name(self) -> str:
        """Name of the printed number that gives the epoch."""
        return "epoch" if self.epoch_from is None else EpochNumber.of(self.epoch_from).name

    @property
    def numbers_epochs(self) -> bool:
        """Return whether the program's reports contain an epoch number."""
        if self.logged:
            return self.epoch_from is not None
        return not self.patterns or any(self.epoch_name in re.compile(one).groupindex for one in self.patterns)

    def report_limit(self, *, is_first: bool) -> tuple[str, float]:
        """Return the time limit for the next report: its key in the spec, and seconds."""
        if self.report_seconds is not None:
            return "report_seconds", self.report_seconds
        return "first_report_seconds", self.first_report_seconds if is_first else math.inf

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Command":
        """Build the command from a task's options. Raises ValueError (one line) for a wrong option."""
        for path, problem in problems_of(options):
            raise ValueError(f"{'.'.join(map(str, path))}: {problem}")
        given = {name: value for name, value in options.items() if name != COMMAND}
        parts = tuple(tuple(map(str, p)) if isinstance(p, list | tuple) else str(p) for p in options[COMMAND])
        environment = {name: str(value) for name, value in given.pop("environment", {}).items()}
        return cls(parts=parts, environment=environment, preload=tuple(given.pop("preload", ())), **given)

    def names(self) -> Iterator[tuple[str, bool]]:
        """Yield each name in braces, with True if it is in a nested list, which trials may omit."""
        for part in self.parts:
            for text in part if isinstance(part, tuple) else (part,):
                yield from ((name, isinstance(part, tuple)) for name in names_in(text))
        for text in (*self.environment.values(), self.json_file, self.folder):
            yield from ((name, False) for name in names_in(text))


def problems_of(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield place and description of each problem in a command's options."""
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
    yield from _problems_of_metrics(options.get("metrics", "report"), options.get("epoch_from"))
    environment = options.get("environment", {})
    if not isinstance(environment, Mapping) or not all(
        isinstance(name, str) and name and "=" not in name and _is_text(value) for name, value in environment.items()
    ):
        yield ("environment",), found(environment, "a mapping of names of variables to texts or numbers")
    if not isinstance(options.get("folder", "."), str):
        yield ("folder",), found(options["folder"], "a folder")
    modules = options.get("preload", ())
    if not isinstance(modules, list | tuple) or not all(_MODULE.fullmatch(str(one)) for one in modules):
        yield ("preload",), found(modules, "a list of modules, such as [torch, transformers]")
    for key in "end_seconds", "kill_seconds", "report_seconds", "first_report_seconds", "log_mib":
        may_be_none = key == "report_seconds"
        value = options.get(key, 1.0)
        if not (may_be_none and value is None) and not _is_positive(value):
            yield (key,), found(value, "a number above 0" + (", or null" if may_be_none else ""))


def unknown_names(command: Command, parameters: Collection[str], sometimes: Collection[str]) -> Iterator[str]:
    """Yield a description of each name in braces that is wrong or that some trials lack."""
    for name, may_be_left_out in command.names():
        if name not in parameters and name not in BUILT_IN_NAMES:
            allowed = [*parameters, *BUILT_IN_NAMES]
            every = f"allowed in braces: {listed(allowed)}; write double braces for plain braces"
            near = nearest(name, allowed)
            yield f"found {{{name}}}, {f'which no trial has; did you mean {{{near}}}?' if near else every}"
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
    program, folder = str(command.parts[0]), command.script_folder(base_folder)
    if not folder.is_dir():
        return f"the folder {command.folder!r} does not exist beside the spec. Create it, or name another"
    if names_in(program):
        return None
    if shutil.which(str(folder / program) if "/" in program else program, path=search_path) is None:
        return f"this machine has no program {program!r}. Install it, or correct its name"
    return None


def search_path() -> str:
    """Return the search path for programs, with the folder of this environment's `python` first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def names_in(text: str) -> list[str]:
    """Return the names in braces in a text."""
    if flag := _FLAG.fullmatch(text):
        return [flag[2].replace("-", "_")]
    return [named[1] for named in _NAME_IN_BRACES.finditer(text) if named[1]]


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with names in braces replaced by `values`, and doubled braces by single braces."""
    return _NAME_IN_BRACES.sub(lambda named: values[named[1]] if named[1] else named[0][0], text)


def _problems_of_metrics(metrics: object, epoch_from: object) -> Iterator[Problem]:
    epoch_name = "epoch"
    try:
        epoch_name = EpochNumber.of(str(epoch_from)).name if epoch_from is not None else "epoch"
    except ValueError as error:
        yield ("epoch_from",), str(error)
    match metrics:
        case "report" if epoch_from is not None:
            yield ("epoch_from",), "it converts printed epochs, but metrics is report. Report the right epoch instead"
        case {"pattern": str() | [str(), *_] as given, **rest} if not rest:
            yield from _problems_of_patterns([given] if isinstance(given, str) else given, epoch_name, epoch_from)
        case {"pattern": _, **rest} if rest:
            yield (
                ("metrics", str(next(iter(rest)))),
                "this is not a key of metrics. Move it out of metrics, or remove it",
            )
        case "report" | "json" | {"json_file": str()}:
            pass
        case {"wandb": [str(), *_] as names, **rest} | {"tensorboard": [str(), *_] as names, **rest} if not rest:
            if problem := _problem_of_logged(names):
                yield ("metrics",), problem
        case _:
            yield ("metrics",), found(metrics, _METRICS)


def _problems_of_patterns(patterns: Sequence[str], epoch_name: str, epoch_from: object) -> Iterator[Problem]:
    names: set[str] = set()
    for pattern in patterns:
        try:
            own = set(re.compile(pattern).groupindex)
        except (re.error, TypeError) as error:
            yield ("metrics", "pattern"), f"found {pattern!r}, which is not a regular expression: {error}"
            return
        names |= own
        if not own:
            yield ("metrics", "pattern"), found(pattern, "a regular expression with a named group, (?P<val_error>...)")
    if names and not names - {epoch_name, "epoch"}:
        yield ("metrics", "pattern"), f"found {listed(patterns)}, without a metric. Add a group, (?P<val_error>...)"
    if epoch_from is not None and epoch_name not in names:
        yield ("epoch_from",), f"found {epoch_from!r}, but no pattern has a group (?P<{epoch_name}>...)"


def metric_of(logged: str) -> str:
    """Return the metric's name for a logged name: val/loss gives val_loss."""
    return re.sub(r"\W+", "_", logged).strip("_")


def _problem_of_logged(names: Sequence[object]) -> str:
    metrics = [metric_of(name) if isinstance(name, str) else "" for name in names]
    if {"epoch", "last"}.intersection(metrics):
        return f"found {listed(map(str, names))}, but epoch and last are no metrics. Leave them out, and set epoch_from"
    if not all(metrics) or len(set(metrics)) < len(metrics):
        return found(names, "different names, such as [val/loss, val/error]")
    return ""


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and "\0" not in str(value)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def as_text(value: object) -> str:
    """Return a value as a command-line argument: a text unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def arguments(parts: Sequence[str | tuple[str, ...]], values: Mapping[str, str]) -> list[str]:
    """Return a trial's program and arguments, with names replaced, without lists whose parameters are missing."""
    found_parts: list[str] = []
    for part in parts:
        texts = part if isinstance(part, tuple) else (part,)
        if isinstance(part, tuple) and not all(name in values for text in texts for name in names_in(text)):
            continue
        found_parts += [given for text in texts if (given := _argument(text, values)) is not None]
    return found_parts


def _argument(text: str, values: Mapping[str, str]) -> str | None:
    """Return an argument with names replaced. A switch `--{name}` becomes `--name` if true, and None if false."""
    if (flag := _FLAG.fullmatch(text)) is None:
        return filled(text, values)
    value = values[flag[2].replace("-", "_")]
    return {"true": flag[1] + flag[2], "false": None}.get(value, flag[1] + value)


_FORM = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)|\((?P<inner>[A-Za-z_]\w*)(?P<first>[+-]\d+)\))(?://(?P<by>[1-9]\d*))?(?P<last>[+-]\d+)?"
)


@dataclass(frozen=True, slots=True)
class EpochNumber:
    """Epoch number (n + first) / divisor + last, computed from the printed number n called `name`."""

    name: str
    first: int
    divisor: int
    last: int

    @classmethod
    def of(cls, text: str) -> "EpochNumber":
        """Parse an expression such as `step // 250`. Raises ValueError with the allowed form."""
        form = _FORM.fullmatch("".join(text.split()))
        if form is None:
            allowed = "a name, or an expression such as epoch + 1, step // 250, (step + 1) // 250"
            raise ValueError(f"found {text!r:.100}, allowed: {allowed}")
        return cls(form["name"] or form["inner"], int(form["first"] or 0), int(form["by"] or 1), int(form["last"] or 0))

    def epoch(self, printed: object) -> int | None:
        """Return the epoch; None if the number is not whole, between two epochs or before the first."""
        try:
            epoch = (float(str(printed)) + self.first) / self.divisor + self.last
        except ValueError:
            return None
        return int(epoch) if epoch >= 1 and epoch.is_integer() else None
