"""Shows the state of a study as figures, tables and lines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from automl.terminal.texts import cut
from reports.phrases import counted, duration, state_text, usd, value_in_words
from studies.records.records import FINISHED_STATES, NANO, Action, Objective, StudyRecord, TrialRecord, TrialState
from studies.results import analysis
from studies.results.pareto import last_epoch
from studies.results.recommendation import best_points, name_of
from trainers.protocol import CUMULATIVE_METRICS

HALTS: Mapping[Action, str] = {"pause": "paused", "stop": "stopped"}
"""Decisions that end or interrupt a trial, in words."""
LINE_SECONDS = 10.0  # seconds between progress lines where there is no terminal
GANG_COLUMNS = ("trial", "epochs", "ranks", "slots", "since")
LEAST_ROWS = 2  # least number of rows of each table in a low terminal
_FIXED_LINES = 17  # lines besides the rows of the three tables: figures, titles and empty lines
_SHORTEST_REASON = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A saved model to show, with its name, such as `2@6`, and its objectives."""

    name: str
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """A running trial to show, with recorded epochs, and seconds since its start."""

    trial: str
    epochs: int
    slots: tuple[int, ...]
    seconds: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Halt:
    """A paused, stopped or failed trial to show. `at` is in seconds since 1970."""

    trial: str
    what: str
    epoch: int
    reason: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """State of a study to show, from a running controller or from the store.

    Attributes:
        slots: Existing slots; None while no pool is open.
        planned: Epochs of a full training; None if unknown.
        deadline_seconds: Time until dollars or hours are used up.
        estimate_seconds: Time until the budget's trials have ended, at the current pace.
        best: Name of the best model by expected value, for each objective.
        now: Seconds since 1970.
    """

    name: str
    state: str
    is_running: bool = True
    objectives: tuple[Objective, ...] = ()
    states: Sequence[TrialState] = ()
    most_trials: float | None = None
    slots: int | None = None
    slots_note: str = ""
    epochs: int = 0
    planned: int | None = None
    spent_usd: float = 0.0
    most_usd: float | None = None
    deadline_seconds: float = math.inf
    estimate_seconds: float = math.inf
    archive: Sequence[Model] = ()
    best: Mapping[str, str] = field(default_factory=dict)
    gangs: Sequence[Gang] = ()
    halts: Sequence[Halt] = ()
    now: float = 0.0

    @property
    def figures(self) -> dict[str, str]:
        """Return the figures by name. Unknown figures are empty."""
        return {
            "study": f"{self.name} is {self.state}",
            "trials": self.trials,
            "slots": self._slots(),
            "epochs": str(self.epochs) if self.epochs else "",
            "best": self._best(),
            "spent": self._money(),
            "time left": self._time_left(),
        }

    @property
    def line(self) -> str:
        """Return the figures on one line, for output without a terminal."""
        return "  ".join(f"{name} {value}" for name, value in self.figures.items() if value)

    @property
    def trials(self) -> str:
        """Return the number of started trials: `3 of 14 (1 running, 2 failed)`."""
        limit = f" of {self.most_trials:g}" if self.most_trials is not None else ""
        states = f" ({counted(self.states)})" if self.states else ""
        return f"{len(self.states)}{limit}{states}"

    def _slots(self) -> str:
        there = "" if self.slots is None else str(self.slots)
        if not (self.slots or self.states) and self.is_running:
            there = "starting"
        return f"{there} ({self.slots_note})" if there and self.slots_note else there

    def _best(self) -> str:
        """Return the best value of each objective, without cumulative metrics, which are best at first."""
        best = []
        for one in self.objectives if self.archive else ():
            if one.metric not in CUMULATIVE_METRICS:
                named = [model for model in self.archive if model.name == self.best.get(one.metric)]
                found = named[0] if named else min(self.archive, key=lambda model: one.signed(model.values[one.metric]))
                best.append(f"{one.metric} {value_in_words(one.metric, found.values[one.metric])} ({found.name})")
        return ", ".join(best)

    def _money(self) -> str:
        if self.most_usd is None:
            return usd(self.spent_usd)
        return f"{usd(self.spent_usd)} of {usd(self.most_usd)}, {usd(max(self.most_usd - self.spent_usd, 0.0))} left"

    def _time_left(self) -> str:
        """Return the time left: `about` at the current pace, or `at most` by money or hours."""
        if not self.is_running or not self.states:
            return ""
        if self.estimate_seconds < self.deadline_seconds:
            return f"about {duration(self.estimate_seconds)}"
        return f"at most {duration(self.deadline_seconds)}" if math.isfinite(self.deadline_seconds) else ""


def picture_of(record: StudyRecord, now: float) -> Picture:
    """Return the state to show of a stored study. `now` is in seconds since 1970."""
    driven = record.driven or not was_left(record)
    limits = {name: line.limit for name, line in record.budget.items()}
    archive = analysis.archive(record)
    return Picture(
        name=record.name,
        state=state_text(record.name, record.state, driven=driven, why=record.why_ended),
        is_running=record.state == "running",
        objectives=record.objectives,
        states=[trial.state for trial in record.started],
        most_trials=limits.get("trials"),
        slots=record.slots_there,
        slots_note=f"of up to {record.most_slots}" if record.most_slots and record.driven else "",
        epochs=sum(len(trial.epochs) for trial in record.started),
        planned=last_epoch(record.spec),
        spent_usd=record.cost_nano_usd / NANO,
        most_usd=limits.get("usd"),
        deadline_seconds=_deadline(record),
        estimate_seconds=_estimate(record),
        archive=[Model(name=name_of(one), values=one.values) for one in archive],
        best={objective.metric: name_of(one) for objective, one in best_points(record, archive)},
        gangs=[_gang(record, trial, now) for trial in record.started if trial.state == "running" and trial.attempts],
        halts=_halts_of(record),
        now=now,
    )


def was_left(record: StudyRecord) -> bool:
    """Return whether a study that should be running has lost its controller."""
    return record.is_abandoned and record.alive_seconds > 0


def _deadline(record: StudyRecord) -> float:
    """Return the seconds until dollars or hours are used up, at the current price and slots."""
    price = record.charges[-1].usd_per_slot_hour if record.charges else 0.0
    usd_per_second = (record.slots_there or 0) * price / 3600
    left = {name: max(line.limit - line.spent, 0.0) for name, line in record.budget.items() if line.limit is not None}
    by_usd = left["usd"] / usd_per_second if "usd" in left and usd_per_second else math.inf
    return min(by_usd, left["hours"] * 3600 if "hours" in left else math.inf)


def _estimate(record: StudyRecord) -> float:
    """Return the seconds until the budget's trials have ended; infinite without a limit."""
    line = record.budget.get("trials")
    ended = sum(trial.state in FINISHED_STATES for trial in record.started)
    if line is None or line.limit is None or not ended:
        return math.inf
    return max(line.limit - ended, 0.0) * record.alive_seconds / ended


def _gang(record: StudyRecord, trial: TrialRecord, now: float) -> Gang:
    attempt = trial.attempts[-1]
    return Gang(
        trial=trial.name,
        epochs=len(trial.epochs),
        slots=attempt.slots,
        seconds=max(now - attempt.started_at.timestamp(), 0.0),
        values=trial.values(record.objectives),
    )


def _halts_of(record: StudyRecord) -> list[Halt]:
    halts = [
        Halt(trial=trial.name, what=HALTS[made.action], epoch=made.epoch, reason=made.reason, at=made.decided_at)
        for trial in record.started
        for made in trial.decisions
        if made.action in HALTS
    ]
    for trial in record.started:
        if trial.state == "failed" and trial.ended_at is not None:
            at = trial.ended_at.timestamp()
            halts.append(Halt(trial=trial.name, what="failed", epoch=len(trial.epochs), reason=trial.reason, at=at))
    return halts


def drawn(picture: Picture, console: Console) -> RenderableType:
    """Draw a study's state, with as many rows as fit the terminal."""
    most = max((console.height - _FIXED_LINES) // 3, LEAST_ROWS)
    names = [one.metric for one in picture.objectives]
    parts: list[RenderableType] = [_figures(picture.figures)]
    if picture.archive:
        first = picture.objectives[0]
        models = sorted(picture.archive, key=lambda one: first.signed(one.values[first.metric]))
        rows = [(one.name, *_texts(names, one.values)) for one in models]
        parts += _table("archive", ("model", *names), rows, most)
    if picture.gangs:
        gangs = [gang_cells(one, picture.planned, names) for one in picture.gangs]
        parts += _table("running gangs", (*GANG_COLUMNS, *names), gangs, most)
    if picture.halts:
        parts += _halts(picture, console.width, most)
    return Group(*parts)


def gang_cells(gang: Gang, planned: int | None, names: Sequence[str]) -> tuple[str, ...]:
    """Return a running trial as a row of `GANG_COLUMNS` and objectives."""
    epochs = f"{gang.epochs}/{planned}" if planned else str(gang.epochs)
    slots, ranks = ",".join(map(str, gang.slots)), str(len(gang.slots))
    return (gang.trial, epochs, ranks, slots, duration(gang.seconds), *_texts(names, gang.values))


def _texts(names: Sequence[str], values: Mapping[str, float]) -> list[str]:
    return [value_in_words(name, values.get(name)) for name in names]


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
    latest = sorted(picture.halts, key=lambda one: one.at, reverse=True)[:most]
    lines: list[RenderableType] = [Text(""), Text("just paused or ended", style="italic")]
    for one in latest:
        head = f"{duration(max(picture.now - one.at, 0.0))} ago: trial {one.trial} {one.what} at epoch {one.epoch}"
        reason = cut(one.reason, max(width - len(head) - 2, _SHORTEST_REASON))
        lines.append(Text(f"{head}: {reason}" if reason else head))
    return lines
