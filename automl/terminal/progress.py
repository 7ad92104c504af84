"""Shows progress of a study: a redrawn picture in a terminal, or occasional lines."""

import math
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from automl.stored.polling import rest_seconds
from automl.terminal.picture import HALTS, LINE_SECONDS, Gang, Halt, Model, Picture, drawn, picture_of, was_left
from reports.phrases import state_text
from studies.control.machine.live_trials import Trial
from studies.control.machine.state import StudyMachine
from studies.records.records import FINISHED_STATES, NANO, StudyRecord, why_ended

FRAME_SECONDS = 0.25


class Progress:
    """Shows a running study on a console, or nothing without a console."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._live: Live | None = None
        self._shown_at = 0.0
        self._pace = Pace()

    def __enter__(self) -> "Progress":
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
        """Print a line above the picture."""
        if self._console is not None:
            self._console.print(Text(line))

    def on_commit(self, machine: StudyMachine) -> None:
        """Show progress after a commit."""
        if self._console is None:
            return
        self._pace.saw(machine)
        now = time.monotonic()
        pause = FRAME_SECONDS if self._live is not None else LINE_SECONDS
        if now - self._shown_at < pause and not machine.finished:
            return
        self._shown_at = now
        picture = machine_picture(machine, self._pace)
        if self._live is not None:
            self._live.update(drawn(picture, self._console), refresh=True)
        else:
            self.say(picture.line)


class Pace:
    """Rate at which this controller ends trials. Earlier controllers had other slots."""

    def __init__(self) -> None:
        self._ended_before: int | None = None
        self._trains_since: float | None = None

    def saw(self, machine: StudyMachine) -> None:
        """Record the state. Call this after each commit, including the first."""
        if self._ended_before is None:
            self._ended_before = _ended(machine)
        if self._trains_since is None and machine.running:
            self._trains_since = machine.now

    def seconds_left(self, machine: StudyMachine) -> float:
        """Return the estimated seconds until the budget's trials have ended; infinite before the first end."""
        limit, ended = machine.setup.limits.trials, _ended(machine)
        own = ended - (self._ended_before or 0)
        if limit is None or self._trains_since is None or own <= 0:
            return math.inf
        return max(limit - ended, 0) * (machine.now - self._trains_since) / own


def _ended(machine: StudyMachine) -> int:
    return sum(trial.state in FINISHED_STATES for trial in machine.trials.values())


def machine_picture(machine: StudyMachine, pace: Pace) -> Picture:
    """Return the state to show of a study that this process runs."""
    objectives, limits = machine.setup.objectives, machine.setup.limits
    started = [trial for trial in machine.trials.values() if trial.number is not None]
    why = why_ended(machine.stop_reason, machine.setup.study) if machine.finished else ""
    state = "running (draining)" if machine.draining and not machine.finished else machine.state
    return Picture(
        name=machine.setup.study,
        state=state_text(machine.setup.study, state, driven=True, why=why),
        is_running=not machine.finished,
        objectives=objectives,
        states=[trial.state for trial in started],
        most_trials=limits.trials,
        slots=machine.slot_needs.there,
        slots_note=_slots_note(machine),
        epochs=sum(trial.epochs_done for trial in started),
        planned=machine.setup.epochs,
        spent_usd=machine.spent_nano_usd / NANO,
        most_usd=limits.usd,
        deadline_seconds=max(machine.deadline - machine.now, 0.0),
        estimate_seconds=pace.seconds_left(machine),
        archive=[
            Model(
                name=f"{machine.trials[one.trial_id].number}@{one.epoch}",
                values={o.metric: o.signed(value) for o, value in zip(objectives, one.values, strict=True)},
            )
            for one in machine.archive
        ],
        gangs=[
            Gang(
                trial=str(trial.number),
                epochs=trial.epochs_done,
                slots=trial.attempt.slots,
                seconds=machine.now - trial.attempt.leased_at,
                values=trial.last_metrics,
            )
            for trial in sorted(machine.running, key=lambda one: one.started_number)
            if trial.attempt is not None
        ],
        halts=[halt for trial in started if (halt := _halt(trial)) is not None],
        now=machine.now,
    )


def _halt(trial: Trial) -> Halt | None:
    name, made = str(trial.number), trial.decided
    if trial.failed is not None:
        reason, at = trial.failed
        return Halt(trial=name, what="failed", epoch=trial.epochs_done, reason=reason, at=at)
    if made is None or made.action not in HALTS:
        return None
    return Halt(trial=name, what=HALTS[made.action], epoch=made.epoch, reason=made.reason, at=made.at)


def _slots_note(machine: StudyMachine) -> str:
    if not machine.setup.autoscale or machine.finished:
        return ""
    awaited, released = machine.slot_needs.awaited, machine.slot_needs.let_go
    more = [f"the autoscaler is asked for {awaited} more"] if awaited else []
    more += [f"{released} were released"] if released else []
    return ", ".join([f"of up to {machine.setup.slots}", *more])


LOOK_SECONDS = 2.0
GONE_SECONDS = 10.0
"""Seconds after which a missing controller counts as dead. Another controller may be waiting."""


def watch(
    look: Callable[[], StudyRecord],
    console: Console,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
    used: Callable[[], float] = time.thread_time,
) -> StudyRecord | None:
    """Show a study until it ends. Returns None if the user leaves. `used` returns the thread's CPU seconds."""
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                record = _until_it_ends(
                    look, lambda p: live.update(drawn(p, console), refresh=True), sleep, clock, used
                )
                live.update(Group(), refresh=True)  # the final summary replaces the picture
                return record
        return _until_it_ends(look, Lines(console).show, sleep, clock, used)
    except KeyboardInterrupt:
        return None


def _until_it_ends(
    look: Callable[[], StudyRecord],
    show: Callable[[Picture], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    used: Callable[[], float],
) -> StudyRecord:
    gone_since: float | None = None
    while True:
        used_before = used()
        record, now = look(), clock()
        show(picture_of(record, now))
        gone_since = (gone_since or now) if was_left(record) else None
        if has_ended(record) or (gone_since is not None and now - gone_since >= GONE_SECONDS):
            return record
        sleep(rest_seconds(used() - used_before, LOOK_SECONDS))


def has_ended(record: StudyRecord) -> bool:
    """Return whether a study stays idle until a resume. Studies that wait for disk space resume by themselves."""
    return record.state in {"closed", "failed"} or (record.state == "drained" and record.stop_reason != "storage")


class Lines:
    """Prints changed figures, at most every `LINE_SECONDS`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown, self._shown_at = "", -math.inf

    def show(self, picture: Picture) -> None:
        """Print the figures if they are new and due."""
        if picture.line != self._shown and picture.now - self._shown_at >= LINE_SECONDS:
            self._console.print(Text(picture.line))
            self._shown, self._shown_at = picture.line, picture.now
