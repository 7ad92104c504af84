"""Finds metrics in a program's output: lines of JSON, or a regular expression. Does not import torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainers.commands.command import Metrics

_LONGEST_NOTE = 300


class Reported(NamedTuple):
    """Metrics that a program reports for an epoch.

    Attributes:
        epoch: Number of the epoch; None for the next.
        ignored: Parts of the line that are no metrics, for the log; may be empty.
    """

    epoch: object
    metrics: Mapping[str, object]
    last: bool = False
    is_printed: bool = False
    ignored: str = ""


Reader = Callable[[str], Reported | None]
"""Finds metrics in a line; raises ValueError for a malformed one."""


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
    """Return how to report metrics, for the error message of a silent program."""
    if metrics == "report":
        return (
            "a report of each epoch by automl.report, or, of a program that prints its metrics, task.metrics: json or "
            "{pattern: ...}"
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
        raise ValueError(f"found the line {line!r:.200}, which is no JSON: {error}") from None
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
