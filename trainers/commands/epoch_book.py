"""Finds epochs and metrics in a program's reports and output, and records which epoch is due for a checkpoint."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainers.commands.command import Metrics
from trainers.failures import UnreadablePartError
from trainers.functions.trial import CONTROLLERS_METRICS
from trainers.protocol import Measurement, TaskError, TrialSpec

_LONGEST_NOTE = 300


class Reported(NamedTuple):
    """Metrics that a program reports; `epoch` None is the next, `ignored` has parts of the line without metrics."""

    epoch: object
    metrics: Mapping[str, object]
    last: bool = False
    is_printed: bool = False
    ignored: str = ""


Reader = Callable[[str], Reported | None]
"""Function that finds metrics in a line; raises ValueError for a malformed line."""


def reader_of(metrics: Metrics) -> Reader | None:
    """Return the reader of standard output, None if the program calls `automl.report`."""
    if metrics == "report":
        return None
    if metrics == "json":
        return in_json
    assert isinstance(metrics, Mapping)  # noqa: S101 - there is no other form
    pattern = re.compile(metrics["pattern"])
    return lambda line: in_text(line, pattern)


def way_to_report(metrics: Metrics) -> str:
    """Return the expected reports of metrics, for the error message of a silent program."""
    if metrics == "report":
        return (
            "a report of each epoch by automl.report, or task.metrics: json or {pattern: ...} for a program that "
            "prints its metrics"
        )
    if metrics == "json":
        return 'a line of JSON with "epoch" for each epoch'
    assert isinstance(metrics, Mapping)  # noqa: S101 - there is no other form
    return f"a line for each epoch that matches {metrics['pattern']!r:.200}"


def in_json(line: str) -> Reported | None:
    """Return the metrics of a JSON object with `epoch`, None for other lines; raises ValueError for broken JSON."""
    if not line.startswith("{") or '"epoch"' not in line:
        return None
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the line {line!r:.200} is not valid JSON: {error}") from None
    if not isinstance(said, dict) or "epoch" not in said:
        return None
    rest = {name: value for name, value in said.items() if name not in ("epoch", "last")}
    numbers = {name: value for name, value in rest.items() if isinstance(value, int | float)}
    others = [f"{name}: {value!r:.40}" for name, value in rest.items() if name not in numbers]
    return Reported(
        epoch=said["epoch"],
        metrics=numbers,
        last=said.get("last") is True,
        is_printed=True,
        ignored=", ".join(others)[:_LONGEST_NOTE],
    )


def in_text(line: str, pattern: re.Pattern[str]) -> Reported | None:
    """Return the metrics that a regular expression finds in a line, by the names of its groups."""
    if (named := pattern.search(line)) is None:
        return None
    groups = {name: value for name, value in named.groupdict().items() if value is not None}
    epoch = groups.pop("epoch", None)
    return Reported(epoch=epoch, metrics=groups, is_printed=True)


def numbers_epochs(metrics: Metrics) -> bool:
    """Return whether reports carry an epoch number."""
    return not isinstance(metrics, Mapping) or "epoch" in re.compile(metrics["pattern"]).groupindex


class EpochBook:
    """The epochs of one attempt.

    Attributes:
        held: Measurement of the last epoch, reported once the program has ended.
        is_at_start: This attempt has reported no new epoch yet.
        is_silent: This attempt has reported no epoch at all, repeated or new.
    """

    def __init__(self, epochs: int, is_due: Callable[[], bool]) -> None:
        self._epochs, self._is_due = epochs, is_due
        self._retrained = 0
        self._asks = False
        self._wanted_at = 0
        self._went_on_at = time.monotonic()
        self.is_at_start = self.is_silent = True
        self.epoch = 0
        self.held: Measurement | None = None

    def start(self, epoch: int) -> None:
        """Begin with `epoch` epochs done."""
        self.epoch = epoch
        self.go_on()

    def go_on(self) -> None:
        """Begin to count the time of an epoch."""
        self._went_on_at = time.monotonic()

    def waited_seconds(self) -> float:
        """Return the seconds since the program could begin its epoch."""
        return time.monotonic() - self._went_on_at

    def take_again(self, reported: Reported) -> int | None:
        """Handle a repeated report of an earlier attempt's epoch; raises TaskError if the epoch is no number."""
        epoch = self._epoch_of(reported)
        if not (self.is_at_start and self._retrained in (0, epoch - 1) and epoch <= self.epoch):
            return None
        self._retrained, self.is_silent = epoch, False
        return epoch

    def take(self, reported: Reported) -> dict[str, float]:
        """Record a new epoch, and return its metrics; UnreadablePartError if the saved state is of a later epoch."""
        expected, epoch = self.epoch + 1, self._epoch_of(reported)
        if self.held is not None:
            raise TaskError(f"the command reported epoch {epoch} after its last epoch, {self.epoch}")
        if epoch > expected and self.epoch and self.is_at_start and reported.is_printed:
            raise UnreadablePartError(
                f"the command went on with epoch {epoch} from a checkpoint of epoch {self.epoch}: its files belong to "
                "a later epoch, so the trial goes back to an earlier checkpoint"
            )
        if epoch != expected:
            raise TaskError(f"the command reported epoch {epoch} after epoch {self.epoch}, allowed: {expected}")
        metrics = _numbers(reported)
        self.epoch, self.is_at_start, self.is_silent = epoch, False, False
        return metrics

    def is_wanted(self, epoch: object, spec: TrialSpec, *, ends: bool) -> bool:
        """Return whether a program that asks should save this epoch."""
        number = _whole(epoch)
        self._asks = True
        wanted = ends or number in spec.milestones or number >= self._epochs or self._is_due()
        if wanted:
            self._wanted_at = number
        return wanted

    @property
    def may_end(self) -> bool:
        """Return whether the trial may end with this epoch: a program that asks has saved it."""
        return not self._asks or self._wanted_at == self.epoch

    def saves(self, spec: TrialSpec, *, ends: bool) -> bool:
        """Return whether this epoch gets a checkpoint."""
        if self._asks:
            return self._wanted_at == self.epoch
        return ends or self.epoch in spec.milestones or self._is_due()

    def _epoch_of(self, reported: Reported) -> int:
        return self.epoch + 1 if reported.epoch is None else _whole(reported.epoch)


def _whole(epoch: object) -> int:
    try:
        number = float(str(epoch))
    except ValueError:
        number = math.nan
    if not number.is_integer() or number < 1:
        raise TaskError(f"the command reported epoch {epoch!r:.50}, allowed: whole numbers from 1")
    return int(number)


def _numbers(reported: Reported) -> dict[str, float]:
    """Return metrics as numbers; NaN and infinity pass, the controller judges them."""
    if not reported.metrics:
        raise TaskError(f"the command reported epoch {reported.epoch} without a metric")
    metrics = {}
    for name, value in reported.metrics.items():
        if name in CONTROLLERS_METRICS:
            raise TaskError(f"the command reported {name!r}, which every trial has. Choose another name")
        try:
            metrics[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise TaskError(f"the command reported {name}: found {value!r:.80}, allowed: a number") from None
    return metrics
