"""Shows a study that another process drives, until it ends (`automl status --watch`)."""

import math
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from automl.stored.polling import rest_seconds
from automl.terminal.picture import LINE_SECONDS, Picture, drawn, picture_of, was_left
from studies.records.records import StudyRecord

LOOK_SECONDS = 2.0
GONE_SECONDS = 10.0
"""Seconds without a controller after which the controller counts as dead. Another controller may be waiting."""


def watch(
    look: Callable[[], StudyRecord],
    console: Console,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
    used: Callable[[], float] = time.thread_time,
) -> StudyRecord | None:
    """Show a study until it has ended. None if the user left before. `used` returns this thread's CPU seconds."""
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
    """Return whether a study stays idle until it is resumed; waiting for disk space ends by itself."""
    return record.state in {"closed", "failed"} or (record.state == "drained" and record.stop_reason != "storage")


class Lines:
    """Prints changed figures, at most as often as a launch's progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown, self._shown_at = "", -math.inf

    def show(self, picture: Picture) -> None:
        """Print the figures of a picture, if it is time."""
        if picture.line != self._shown and picture.now - self._shown_at >= LINE_SECONDS:
            self._console.print(Text(picture.line))
            self._shown, self._shown_at = picture.line, picture.now
