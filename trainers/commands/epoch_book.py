"""Finds epochs and metrics in a program's reports and output, and decides which epochs get a checkpoint."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from search_spaces.messages import listed
from trainers.commands.command import Command, EpochNumber
from trainers.failures import UnreadablePartError
from trainers.protocol import CUMULATIVE_METRICS, Measurement, TaskError, TrialSpec

_LONGEST_NOTE = 300


class Reported(NamedTuple):
    """Metrics from a program. `epoch` None means the next epoch; `ignored` lists values that are not metrics."""

    epoch: object
    metrics: Mapping[str, object]
    last: bool = False
    is_printed: bool = False
    ignored: str = ""


Reader = Callable[[str], Reported | None]
"""Finds metrics in a line of output. Raises ValueError for a malformed line."""


def reader_of(command: Command) -> Reader | None:
    """Return the reader of output lines; None if reports are calls."""
    if command.calls_us:
        return None
    number = None if command.epoch_from is None else EpochNumber.of(command.epoch_from)
    if command.patterns:
        return _Patterns([re.compile(one) for one in command.patterns], number)
    return partial(in_json, number=number)


def way_to_report(command: Command) -> str:
    """Return the expected form of reports, for the error message about a program without reports."""
    if command.metrics == "report":
        return (
            "a report of each epoch by automl.report, or task.metrics: json or {pattern: ...} for a program that "
            "prints its metrics"
        )
    if command.logged:
        return f"values of {listed(command.logged)} for each epoch, which a Python program logs"
    if command.patterns:
        matching = " and one that matches ".join(f"`{one}`" for one in command.patterns)
        return f"a line for each epoch that matches {matching}"[:300]
    place = f" in {command.json_file}" if command.json_file else ""
    return f'a line of JSON with "{command.epoch_name}" for each epoch{place}'


def in_json(line: str, number: EpochNumber | None = None) -> Reported | None:
    """Return the metrics in a line of JSON with an epoch, else None. Raises ValueError for invalid JSON."""
    name = "epoch" if number is None else number.name
    if not line.startswith("{") or f'"{name}"' not in line:
        return None
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the line {line!r:.200} is not valid JSON: {error}") from None
    if not isinstance(said, dict) or name not in said:
        return None
    rest = {key: value for key, value in said.items() if key not in ("epoch", "last", name)}
    numbers = {key: value for key, value in rest.items() if isinstance(value, int | float)}
    others = [f"{key}: {value!r:.40}" for key, value in rest.items() if key not in numbers]
    ignored = ", ".join(others)[:_LONGEST_NOTE]
    return _reported(said[name], number, numbers, last=said.get("last") is True, ignored=ignored)


class _Patterns:
    """Reads metrics from named groups of regular expressions, once each expression has matched."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], number: EpochNumber | None) -> None:
        self._patterns, self._number = patterns, number
        self._groups: dict[re.Pattern[str], dict[str, str]] = {}

    def __call__(self, line: str) -> Reported | None:
        new = {one: named.groupdict() for one in self._patterns if (named := one.search(line))}
        self._groups |= new
        if not new or len(self._groups) < len(self._patterns):
            return None
        found = [self._groups[one] for one in self._patterns]
        groups = {name: value for one in found for name, value in one.items() if value is not None}
        self._groups.clear()
        epoch = groups.pop("epoch" if self._number is None else self._number.name, None)
        return _reported(epoch, self._number, {name: value for name, value in groups.items() if name != "epoch"})


def _reported(said: object, number: EpochNumber | None, metrics: Mapping[str, object], **more: Any) -> Reported | None:
    epoch = said if number is None else number.epoch(said)
    return None if number is not None and epoch is None else Reported(epoch, metrics, is_printed=True, **more)


class EpochBook:
    """Records the epochs that a program reports in one attempt.

    Attributes:
        held: Measurement of the last epoch, reported only after the program's end.
        is_at_start: The program has reported no new epoch yet.
        is_silent: The program has reported no epoch yet, repeated or new.
    """

    def __init__(self, epochs: int, is_due: Callable[[], bool]) -> None:
        self._epochs, self._is_due = epochs, is_due
        self._retrained = 0
        self._asks = False
        self._further = 0
        self._wanted_at = 0
        self._went_on_at = time.monotonic()
        self.is_at_start = self.is_silent = True
        self.epoch = 0
        self.held: Measurement | None = None

    def start(self, epoch: int) -> None:
        """Start an attempt after `epoch` completed epochs."""
        self.epoch = epoch
        self.go_on()

    def go_on(self) -> None:
        """Start the clock for the next epoch."""
        self._went_on_at = time.monotonic()

    def waited_seconds(self) -> float:
        """Return the seconds since the current epoch could start."""
        return time.monotonic() - self._went_on_at

    def trains_on(self, reported: Reported, *, is_numbered: bool) -> bool:
        """Return whether metrics after the last epoch are of a further epoch, rather than of a final test.

        The first two such metrics without a number are taken for a final validation and test.
        """
        self._further += 1
        if not is_numbered or reported.epoch is None:
            return self._further > 2
        with suppress(TaskError):  # a number such as 0
            return self._epoch_of(reported) > self.epoch
        return False

    def take_again(self, reported: Reported) -> int | None:
        """Record an earlier attempt's epoch again; return its number, or None if it is new. May raise TaskError."""
        epoch = self._epoch_of(reported)
        if not (self.is_at_start and self._retrained in (0, epoch - 1) and epoch <= self.epoch):
            return None
        self._retrained, self.is_silent = epoch, False
        return epoch

    def take(self, reported: Reported) -> dict[str, float]:
        """Record a new epoch, and return its metrics. UnreadablePartError if the program resumed from a later epoch."""
        expected, epoch = self.epoch + 1, self._epoch_of(reported)
        if self.held is not None:
            cure = "Give the command {epochs}, set training.epochs to what it trains, or task.end_seconds to 0.1"
            raise TaskError(f"the command reported epoch {epoch} after its last epoch, {self.epoch}. {cure}")
        if epoch > expected and self.epoch and self.is_at_start and reported.is_printed:
            raise UnreadablePartError(
                f"the command continued with epoch {epoch}, but its checkpoint is of epoch {self.epoch}: automl kept "
                "the files after the command had saved a later epoch. The trial returns to an earlier checkpoint"
            )
        if epoch != expected:
            cure = _cure_of_order(epoch, expected) if reported.is_printed else ""
            raise TaskError(f"the command reported epoch {epoch} after epoch {self.epoch} instead of {expected}{cure}")
        metrics = _numbers(reported)
        self.epoch, self.is_at_start, self.is_silent = epoch, False, False
        return metrics

    def is_wanted(self, epoch: object, spec: TrialSpec, *, ends: bool) -> bool:
        """Return whether a program that asks before it saves should save in this epoch."""
        number = _whole(epoch)
        self._asks = True
        wanted = ends or number in spec.milestones or number >= self._epochs or self._is_due()
        if wanted:
            self._wanted_at = number
        return wanted

    @property
    def may_end(self) -> bool:
        """Return whether the trial may end after this epoch: a program that asks before it saves must have saved."""
        return not self._asks or self._wanted_at == self.epoch

    def saves(self, spec: TrialSpec, *, ends: bool) -> bool:
        """Return whether this epoch gets a checkpoint."""
        if self._asks:
            return self._wanted_at == self.epoch
        return ends or self.epoch in spec.milestones or self._is_due()

    def _epoch_of(self, reported: Reported) -> int:
        return self.epoch + 1 if reported.epoch is None else _whole(reported.epoch, is_printed=reported.is_printed)


def _cure_of_order(epoch: int, expected: int) -> str:
    if epoch < expected:
        return ". If several lines of an epoch have metrics, let task.metrics.pattern match one, such as the last batch"
    return f". If only some epochs have metrics, divide: task.epoch_from: epoch // {epoch - expected + 1}"


def _whole(epoch: object, *, is_printed: bool = False) -> int:
    try:
        number = float(str(epoch))
    except ValueError:
        number = math.nan
    if not number.is_integer() or number < 1:
        cure = (
            ". For epochs that count from 0 set task.epoch_from: epoch + 1; task.epoch_from: epoch skips such lines"
            if is_printed
            else ""
        )
        raise TaskError(f"the command reported epoch {epoch!r:.50}, but epochs are whole numbers from 1{cure}")
    return int(number)


def _numbers(reported: Reported) -> dict[str, float]:
    """Return metrics as numbers. NaN and infinity are left to the controller."""
    if not reported.metrics:
        raise TaskError(f"the command reported epoch {reported.epoch} without a metric")
    metrics = {}
    for name, value in reported.metrics.items():
        if name in CUMULATIVE_METRICS:
            raise TaskError(f"the command reported {name!r}, a metric that every trial has. Choose another name")
        try:
            metrics[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise TaskError(f"the command reported {name}: found {value!r:.80}, allowed: a number") from None
    return metrics


_WORD = r"[A-Za-z][\w/@-]*"
_PAIR = re.compile(
    rf"(?P<name>{_WORD}(?: {_WORD})?)(?P<between>\s*[:=]\s*|\s+)[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?(?![\w.])", re.ASCII
)
_MOST_CHARACTERS = 500  # of a line, because the search takes time quadratic in a word's length
_METRIC = re.compile(
    r"(?:^|_)(?:\w*loss|acc|accuracy|err|error|auc|auroc|auprc|f1|score|dice|m?iou|m?ap|rewards?|returns?|perplexity|ppl|"
    r"bpc|r?mse|mape|mae|r2|recall|precision|bleu|rouge|nll|elbo|kl|likelihood|kappa|fid|psnr|ssim|wer|cer)\d*(?:_|$)"
)
"""Parts of names that metrics usually have; other numbers beside words are mostly versions, sizes and times."""
_COUNTERS = {"epoch": "epoch", "epochs": "epoch", "step": "step", "steps": "step", "iter": "step", "iteration": "step"}


def likely_pattern(lines: Sequence[str]) -> str | None:
    """Return a regular expression for the last line with a usual metric, preferably with an epoch, or None.

    `val loss 0.31` becomes `val_loss`, a number after `Epoch` becomes `epoch`, and a number after `iter` `step`.
    """
    lines = [line[:_MOST_CHARACTERS] for line in lines]
    counters = set(_COUNTERS.values())
    read = [dict(_pairs(line)) for line in reversed(lines)]
    readings = [pairs for pairs in read if any(map(_METRIC.search, pairs.keys() - counters))]
    for pairs in sorted(readings, key=lambda one: not one.keys() & counters):
        pattern = ".*?".join(pairs.values())
        if any(re.search(pattern, line) for line in lines):
            return pattern
    return None


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    """Yield each name in a line, with a regular expression for the number after it."""
    for pair in _PAIR.finditer(line):
        text, last = pair["name"], pair["name"].split()[-1]
        counter = _COUNTERS.get(last.lower())
        name = counter or re.sub(r"\W+", "_", text).strip("_").lower()
        between = r"\s*[:=]\s*" if pair["between"].strip() else r"\s+"
        words = last if counter else text
        yield name, f"{words}{between}(?P<{name}>{'[0-9]+' if counter else '[-+.0-9eE]+'})"
