"""A study driven in the terminal: live progress, the summary at the end, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from automl.launching.driving import Outcome, Watcher
from automl.terminal.echo import echo
from automl.terminal.exit_codes import FAILED, INTERRUPTED, NOTHING_COMPLETE
from automl.terminal.explanation import resuming_note
from automl.terminal.output import console, only_json_on_stdout, print_json, warn
from automl.terminal.progress import Progress
from automl.terminal.summary import document_of, print_summary
from automl.terminal.texts import late_views_text


def drive_in_terminal(drive: Callable[[Watcher], Outcome], *, as_json: bool) -> None:
    """Drive a study with live progress, print its summary, and exit with the code that says how it ended.

    Args:
        drive: Drives the study until it ends.
        as_json: Whether a program reads the summary: then nothing else is printed on stdout.
    """
    terminal = None if as_json else console()
    # Ray prints on stdout when a worker dies, from a thread of its own.
    with only_json_on_stdout(as_json), Progress(terminal) as progress:
        outcome = drive(Watcher(on_commit=progress.on_commit, say=progress.say, warn=warn))
    report = str(outcome.report)
    if outcome.views_behind:
        late = late_views_text(outcome.views_behind)
        echo(f"{late}; see `automl sync {outcome.record.name}`", err=True)
    resuming = resuming_note(outcome.record)
    if resuming is not None:
        warn(resuming)
    if terminal is None:
        print_json(document_of(outcome.record, report=report))
    else:
        print_summary(terminal, outcome.record, report=report)
    sys.exit(_exit_code(outcome))


def _exit_code(outcome: Outcome) -> int:
    record = outcome.record
    if record.state == "failed":
        return FAILED
    if outcome.interrupted or record.state == "drained":
        return INTERRUPTED
    return 0 if any(trial.state == "complete" for trial in record.trials) else NOTHING_COMPLETE
