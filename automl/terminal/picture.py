"""A study at one moment, drawn for a terminal: figures, the archive, the gangs that train, and what has just ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from automl.terminal.texts import cut
from reports.wording import duration

LEAST_ROWS = 2
"""Number of rows of each table in the lowest terminal."""
_FIXED_LINES = 17
"""Lines of a picture beside the rows of its three tables: figures, titles and empty lines."""
_SHORTEST_REASON = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A point of the archive: its name, such as `2@6`, and its objectives as texts."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """The ranks that train a trial.

    Attributes:
        trial: Name of the trial.
        epochs: Recorded epochs of those planned, such as `3/27`.
        slots: Numbers of the slots.
        seconds: Time since the dispatch.
        values: Objectives at the last epoch as texts.
    """

    trial: str
    epochs: str
    slots: str
    seconds: float
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Halt:
    """A trial that was paused or stopped, or has failed.

    Attributes:
        trial: Name of the trial.
        what: Word for what happened, such as `paused`.
        epoch: Number of epochs that were recorded then.
        reason: Reason in words.
        at: Moment in seconds since 1970.
    """

    trial: str
    what: str
    epoch: int
    reason: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """What is drawn of a study.

    Attributes:
        figures: Figures by name; empty ones are left out.
        objectives: Names of the objectives, the headings of the values.
        archive: Models that no other one beats in all objectives, the best of the first objective first.
        gangs: Gangs that train, by trial.
        halts: What was paused, stopped or failed, in any order.
        now: Moment of the picture, in seconds since 1970.
    """

    figures: Mapping[str, str]
    objectives: tuple[str, ...] = ()
    archive: Sequence[Model] = field(default_factory=tuple)
    gangs: Sequence[Gang] = field(default_factory=tuple)
    halts: Sequence[Halt] = field(default_factory=tuple)
    now: float = 0.0

    @property
    def line(self) -> str:
        """The figures on one line, for what is no terminal."""
        return "  ".join(f"{name} {value}" for name, value in self.figures.items() if value)


def drawn(picture: Picture, console: Console) -> RenderableType:
    """Return a picture with as many rows as the terminal has room for, those without rows left out."""
    most = max((console.height - _FIXED_LINES) // 3, LEAST_ROWS)
    parts: list[RenderableType] = [_figures(picture.figures)]
    if picture.archive:
        rows = [(one.name, *one.values) for one in picture.archive]
        parts += _table("archive", ("model", *picture.objectives), rows, most)
    if picture.gangs:
        names = ("trial", "epochs", "slots", "since", *picture.objectives)
        gangs = [(one.trial, one.epochs, one.slots, duration(one.seconds), *one.values) for one in picture.gangs]
        parts += _table("running gangs", names, gangs, most)
    if picture.halts:
        parts += _halts(picture, console.width, most)
    return Group(*parts)


def _figures(figures: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(value))
    return table


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> list[RenderableType]:
    table = Table(box=None, title=title, title_justify="left", pad_edge=False, padding=(0, 2), header_style="dim")
    for name in names:
        table.add_column(Text(name), no_wrap=True, justify="right")
    for row in rows[:most]:
        table.add_row(*map(Text, row))
    more = [Text(f"and {len(rows) - most} more", style="dim")] if len(rows) > most else []
    return [Text(""), table, *more]


def _halts(picture: Picture, width: int, most: int) -> list[RenderableType]:
    """The latest ones, the newest first, one line for each."""
    latest = sorted(picture.halts, key=lambda one: one.at, reverse=True)[:most]
    lines: list[RenderableType] = [Text(""), Text("just paused or ended", style="italic")]
    for one in latest:
        head = f"{duration(max(picture.now - one.at, 0.0))} ago: trial {one.trial} {one.what} at epoch {one.epoch}"
        reason = cut(one.reason, max(width - len(head) - 2, _SHORTEST_REASON))
        lines.append(Text(f"{head}: {reason}" if reason else head))
    return lines
