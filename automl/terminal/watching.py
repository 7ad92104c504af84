"""A study that another process drives, shown in place until it ends (`automl status --watch`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from automl.stored.looking import rest_seconds
from automl.terminal.picture import Gang, Halt, Model, Picture, drawn
from automl.terminal.progress import HALTS, LINE_SECONDS
from automl.terminal.texts import metric_text, state_text
from reports.wording import duration, usd
from studies import analysis
from studies.records import CUMULATIVE_METRICS, FINISHED_STATES, NANO, StudyRecord

LOOK_SECONDS = 2.0
GONE_SECONDS = 10.0
"""Time without a controller after which one that drove the study counts as dead, since another may stand by."""
_SHOWN_STATES = ("running", "paused", "complete", "pruned", "failed")


def watch(
    look: Callable[[], StudyRecord],
    console: Console,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
    used: Callable[[], float] = time.thread_time,
) -> StudyRecord | None:
    """Show a study until it has ended.

    In a terminal the picture stays in place; elsewhere a line is printed when something has changed.

    Args:
        look: Function that returns the study as committed.
        console: Console to print on.
        sleep: Function that waits for so many seconds.
        clock: Function that returns the present moment, in seconds since 1970.
        used: Function that returns the processor time that this thread has used, in seconds.

    Returns:
        The study at its end; None if the user has left before.
    """
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                record = _until_it_ends(
                    look, lambda p: live.update(drawn(p, console), refresh=True), sleep, clock, used
                )
                live.update(Group(), refresh=True)  # the summary says it all
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
        show(picture_of_record(record, now))
        gone_since = (gone_since or now) if was_left(record) else None
        if has_ended(record) or (gone_since is not None and now - gone_since >= GONE_SECONDS):
            return record
        sleep(rest_seconds(used() - used_before, LOOK_SECONDS))


def has_ended(record: StudyRecord) -> bool:
    """Whether nothing happens to a study before somebody resumes it; one that waits for room goes on by itself."""
    return record.state in {"closed", "failed"} or (record.state == "drained" and record.stop_reason != "storage")


def was_left(record: StudyRecord) -> bool:
    """Whether a controller has driven a study that should run, and none does now."""
    return record.is_abandoned and record.alive_seconds > 0


class Lines:
    """Prints figures that have changed, not more often than the progress of a launch.

    Args:
        console: Console to print on.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown, self._shown_at = "", -math.inf

    def show(self, picture: Picture) -> None:
        """Print the figures of a picture, if it is time."""
        if picture.line != self._shown and picture.now - self._shown_at >= LINE_SECONDS:
            self._console.print(Text(picture.line))
            self._shown, self._shown_at = picture.line, picture.now


def picture_of_record(record: StudyRecord, now: float) -> Picture:
    """Return the picture of a stored study.

    Args:
        record: Study as committed.
        now: Present moment, in seconds since 1970.
    """
    names = tuple(one.metric for one in record.objectives)
    first = record.objectives[0]
    points = sorted(analysis.archive(record), key=lambda point: first.signed(point.values[first.metric]))
    archive = [
        Model(name=f"{one.trial}@{one.epoch}", values=tuple(metric_text(name, one.values[name]) for name in names))
        for one in points
    ]
    return Picture(
        figures=figures_of_record(record, archive),
        objectives=names,
        archive=archive,
        gangs=_gangs(record, now),
        halts=_halts(record),
        now=now,
    )


def figures_of_record(record: StudyRecord, archive: list[Model]) -> dict[str, str]:
    """Return the figures of a stored study, by the names that they have in the progress of a launch.

    Args:
        record: Study as committed.
        archive: Models of its archive.
    """
    driven = record.driven or not was_left(record)
    why = f": {record.why_ended}" if record.why_ended else ""
    epochs = sum(len(trial.epochs) for trial in record.started)
    return {
        "study": f"{record.name} is {state_text(record.name, record.state, driven=driven)}{why}",
        "trials": _trials(record),
        "slots": "" if record.slots_there is None else str(record.slots_there),
        "epochs": str(epochs) if epochs else "",
        "best": _best(record) if archive else "",
        "spent": _money(record),
        "time left": _time_left(record),
    }


def _trials(record: StudyRecord) -> str:
    states = [trial.state for trial in record.started]
    counted = ", ".join(f"{states.count(one)} {one}" for one in _SHOWN_STATES if one in states)
    line = record.budget.get("trials")
    limit = f" of {line.limit:g}" if line is not None and line.limit is not None else ""
    return f"{len(states)}{limit}{f' ({counted})' if counted else ''}"


def _best(record: StudyRecord) -> str:
    """The best value of each objective over the archive, cumulative metrics left out: the first epoch is the best."""
    points, best = analysis.archive(record), []
    for one in record.objectives:
        if one.metric not in CUMULATIVE_METRICS:
            value = min((point.values[one.metric] for point in points), key=one.signed)
            best.append(f"{one.metric} {metric_text(one.metric, value)}")
    return ", ".join(best)


def _money(record: StudyRecord) -> str:
    spent, line = record.cost_nano_usd / NANO, record.budget.get("usd")
    if line is None or line.limit is None:
        return usd(spent)
    return f"{usd(spent)} of {usd(line.limit)}, {usd(max(line.limit - spent, 0.0))} left"


def _time_left(record: StudyRecord) -> str:
    """The time left: `about` by the pace of the trials so far, `at most` by the dollars or hours that are left."""
    if record.state != "running" or not record.started:
        return ""
    deadline, estimate = _deadline(record), _estimate(record)
    if estimate < deadline:
        return f"about {duration(estimate)}"
    return f"at most {duration(deadline)}" if math.isfinite(deadline) else ""


def _deadline(record: StudyRecord) -> float:
    """Seconds after which dollars or hours are used up, at the present price of the slots that are there."""
    price = record.charges[-1].usd_per_slot_hour if record.charges else 0.0
    usd_per_second = (record.slots_there or 0) * price / 3600
    left = {name: max(line.limit - line.spent, 0.0) for name, line in record.budget.items() if line.limit is not None}
    by_usd = left["usd"] / usd_per_second if "usd" in left and usd_per_second else math.inf
    return min(by_usd, left["hours"] * 3600 if "hours" in left else math.inf)


def _estimate(record: StudyRecord) -> float:
    """Seconds until the trials of the budget have ended, if they end as often as before; infinite without a limit."""
    line = record.budget.get("trials")
    ended = sum(trial.state in FINISHED_STATES for trial in record.started)
    if line is None or line.limit is None or not ended:
        return math.inf
    return max(line.limit - ended, 0.0) * record.alive_seconds / ended


def _gangs(record: StudyRecord, now: float) -> list[Gang]:
    training = record.spec.get("training")
    planned = training.get("epochs") if isinstance(training, Mapping) else None
    gangs = []
    for trial in record.started:
        if trial.state == "running" and trial.attempts:
            attempt, values = trial.attempts[-1], trial.values(record.objectives)
            done = len(trial.epochs)
            gangs.append(
                Gang(
                    trial=trial.name,
                    epochs=f"{done}/{planned}" if planned else str(done),
                    slots=",".join(map(str, attempt.slots)),
                    seconds=max(now - attempt.started_at.timestamp(), 0.0),
                    values=tuple(metric_text(one.metric, values.get(one.metric)) for one in record.objectives),
                )
            )
    return gangs


def _halts(record: StudyRecord) -> list[Halt]:
    """What the search has paused or stopped, and what has failed."""
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
