"""Live progress of a study: a picture that stays in place in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from automl.terminal.picture import Gang, Halt, Model, Picture, drawn
from automl.terminal.texts import metric_text
from reports.wording import duration, usd
from studies.control.state import StudyMachine
from studies.records import CUMULATIVE_METRICS, FINISHED_STATES, NANO, Action

LINE_SECONDS = 10.0
FRAME_SECONDS = 0.25
HALTS: Mapping[Action, str] = {"pause": "paused", "stop": "stopped"}
"""Decisions after which a trial does not train, with their words."""


class Progress:
    """Shows a study while it runs.

    Args:
        console: Console to print on; None prints nothing.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._live: Live | None = None
        self._shown_at = 0.0
        self._pace = Pace()

    def __enter__(self) -> Progress:
        if self._console is not None and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def say(self, line: str) -> None:
        """Print a line above the table."""
        if self._console is not None:
            self._console.print(Text(line))

    def on_commit(self, machine: StudyMachine) -> None:
        """Show the study as it is after a commit."""
        if self._console is None:
            return
        self._pace.saw(machine)
        now = time.monotonic()
        pause = FRAME_SECONDS if self._live is not None else LINE_SECONDS
        if now - self._shown_at < pause and not machine.finished:
            return
        self._shown_at = now
        picture = picture_of(machine, self._pace)
        if self._live is not None:
            self._live.update(drawn(picture, self._console), refresh=True)
        else:
            self.say(picture.line)


class Pace:
    """How many trials this controller ends in a time; those of earlier controllers say nothing about its slots."""

    def __init__(self) -> None:
        self._ended_before: int | None = None
        self._trains_since: float | None = None

    def saw(self, machine: StudyMachine) -> None:
        """Take note of a commit; has to be called after each one, the first included."""
        if self._ended_before is None:
            self._ended_before = _ended(machine)
        if self._trains_since is None and machine.running:
            self._trains_since = machine.now

    def seconds_left(self, machine: StudyMachine) -> float:
        """Return the estimated seconds until all trials of the budget have ended; infinite before the first ends."""
        limit, ended = machine.setup.limits.trials, _ended(machine)
        own = ended - (self._ended_before or 0)
        if limit is None or self._trains_since is None or own <= 0:
            return math.inf
        return max(limit - ended, 0) * (machine.now - self._trains_since) / own


def _ended(machine: StudyMachine) -> int:
    return sum(trial.state in FINISHED_STATES for trial in machine.trials.values())


def figures_of(machine: StudyMachine, pace: Pace) -> dict[str, str]:
    """Return the figures of a running study, by their names in the table."""
    states = Counter(trial.state for trial in machine.trials.values())
    started = sum(trial.number is not None for trial in machine.trials.values())
    limit = machine.setup.limits
    counted = [
        f"{states[state]} {state}" for state in ("running", "paused", "complete", "pruned", "failed") if states[state]
    ]
    epochs = sum(trial.epochs_done for trial in machine.trials.values())
    of_trials = f" of {limit.trials}" if limit.trials is not None else ""
    return {
        "study": f"{machine.setup.study}{' (draining)' if machine.draining and not machine.finished else ''}",
        "trials": f"{started}{of_trials} ({', '.join(counted)})" if counted else f"{started}{of_trials}",
        "slots": _slots(machine) or ("" if started else "starting"),
        "epochs": str(epochs) if epochs else "",
        "best": _best(machine),
        "spent": _money(machine),
        "time left": _time_left(machine, pace) if started and not machine.finished else "",
    }


def picture_of(machine: StudyMachine, pace: Pace) -> Picture:
    """Return the picture of a study that this process drives."""
    objectives = machine.setup.objectives
    by_first = sorted(machine.archive, key=lambda one: one.values[0])
    archive = [
        Model(
            name=f"{machine.trials[one.trial_id].number}@{one.epoch}",
            values=tuple(
                metric_text(o.metric, o.signed(value)) for o, value in zip(objectives, one.values, strict=True)
            ),
        )
        for one in by_first
    ]
    return Picture(
        figures=figures_of(machine, pace),
        objectives=tuple(one.metric for one in objectives),
        archive=archive,
        gangs=_gangs(machine),
        halts=_halts(machine),
        now=machine.now,
    )


def _gangs(machine: StudyMachine) -> list[Gang]:
    return [
        Gang(
            trial=str(trial.number),
            epochs=f"{trial.epochs_done}/{machine.setup.epochs}",
            slots=",".join(map(str, trial.attempt.slots)),
            seconds=machine.now - trial.attempt.leased_at,
            values=tuple(
                metric_text(one.metric, trial.last_metrics.get(one.metric)) for one in machine.setup.objectives
            ),
        )
        for trial in sorted(machine.running, key=lambda one: one.started_number)
        if trial.attempt is not None
    ]


def _halts(machine: StudyMachine) -> list[Halt]:
    return [
        Halt(trial=str(trial.number), what=HALTS[made.action], epoch=made.epoch, reason=made.reason, at=made.at)
        for trial in machine.trials.values()
        if (made := trial.decided) is not None and made.action in HALTS
    ]


def _slots(machine: StudyMachine) -> str:
    """How many slots are there, for how many more the cluster's autoscaler is asked, and how many were let go."""
    if not machine.setup.autoscale or machine.finished:
        return ""
    awaited, released = machine.slot_needs.awaited, machine.slot_needs.let_go
    more = [f"the autoscaler is asked for {awaited} more"] if awaited else []
    more += [f"{released} were let go"] if released else []
    there = f"{machine.setup.slots - awaited - released} of {machine.setup.slots}"
    return f"{there} ({', '.join(more)})" if more else there


def _best(machine: StudyMachine) -> str:
    """The best value of each objective over the archive, cumulative metrics left out: the first epoch is the best."""
    best = []
    for index, objective in enumerate(machine.setup.objectives):
        if objective.metric not in CUMULATIVE_METRICS and machine.archive:
            value = min(milestone.values[index] for milestone in machine.archive)
            best.append(f"{objective.metric} {objective.signed(value):.5g}")
    return ", ".join(best)


def _money(machine: StudyMachine) -> str:
    limit, spent = machine.setup.limits.usd, usd(machine.spent_nano_usd / NANO)
    return spent if limit is None else f"{spent} of {usd(limit)}"


def _time_left(machine: StudyMachine, pace: Pace) -> str:
    """The time left: `about` comes from the pace of the trials, `at most` from the dollars or hours that are left."""
    deadline, estimate = max(machine.deadline - machine.now, 0.0), pace.seconds_left(machine)
    if estimate < deadline:
        return f"about {duration(estimate)}"
    return f"at most {duration(deadline)}" if math.isfinite(deadline) else ""
