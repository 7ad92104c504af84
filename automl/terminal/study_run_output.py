"""Runs a study in the terminal, with progress, log, summary and exit code."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from automl.launching.study_run import Outcome, Watcher
from automl.terminal.echo import FAILED, INTERRUPTED, NOTHING_COMPLETE, echo
from automl.terminal.explanation import resuming_note
from automl.terminal.output import console, only_json_on_stdout, print_json, say_on_stderr, warn
from automl.terminal.picture import HALTS, LINE_SECONDS
from automl.terminal.progress import Pace, Progress, machine_picture
from automl.terminal.summary import document_of, print_summary
from automl.terminal.texts import late_views_text, number_text, params_text, values_text
from reports.phrases import study_sentence
from search_spaces.messages import UserError, found
from search_spaces.untrusted_text import escaped
from studies.control.machine.live_trials import Trial
from studies.control.machine.state import StudyMachine
from studies.records.records import StudyRecord, TrialState
from studies.results.recommendation import recommended
from studies.storage.writing.changes import Decided
from trainers.contract.user_code import OUR_PACKAGES


@dataclass(frozen=True, kw_only=True, slots=True)
class Talk:
    """Output options while a study runs. With `as_json`, stdout has only the summary."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    log_file: Path | None = None

    def check(self) -> None:
        """Raise UserError for contradictory options or an unwritable log file."""
        if self.quiet and self.verbose:
            raise UserError("--quiet and --verbose exclude each other. Pass one of them")
        check_log_file(self.log_file)


def drive_in_terminal(drive: Callable[[Watcher], Outcome], talk: Talk) -> None:
    """Run a study with progress, print its summary, and exit with its exit code."""
    talk.check()
    terminal = None if talk.as_json or talk.quiet else console()
    # Ray prints on stdout from its own thread when a worker dies.
    with only_json_on_stdout(talk.as_json), writing(talk.log_file) as log, Progress(terminal) as progress:
        outcome = drive(_watcher(talk, progress, log))
        log(study_sentence(outcome.record))
    report = str(outcome.report)
    if outcome.views_behind:
        late = late_views_text(outcome.views_behind)
        echo(f"{late}; see `automl sync {outcome.record.name}`", err=True)
    resuming = resuming_note(outcome.record)
    if resuming is not None:
        warn(resuming)
    if talk.as_json:
        print_json(document_of(outcome.record, report=report))
    elif terminal is not None:
        print_ending(terminal, outcome.record, report=report)
    sys.exit(_exit_code(outcome))


def print_ending(terminal: Console, record: StudyRecord, *, report: str) -> None:
    """Print the summary of an ended study, and the reason for exit code 3."""
    print_summary(terminal, record, report=report)
    if exit_code_of(record) == NOTHING_COMPLETE:
        failed = sum(trial.state == "failed" for trial in record.trials)
        if failed and all(trial.state == "failed" or not trial.epochs for trial in record.trials):
            what = "every trial" if failed == len(record.trials) else f"every trial that ended ({failed})"
            mend = f"{what} failed. Remove the cause, then launch with --set study={record.name}-2"
            terminal.print(Text(f"Exit code {NOTHING_COMPLETE}: {mend}"))
            return
        taken = "" if recommended(record) is None else ", so the recommended model could still improve"
        longer = f" To train longer: {record.resume_with_more}" if record.ended_by_budget else ""
        why = f"no trial reached its last epoch{taken}.{longer}"
        terminal.print(Text(f"Exit code {NOTHING_COMPLETE}: {why}"))


def _watcher(talk: Talk, progress: Progress, log: Callable[[str], None]) -> Watcher:
    logged = Chronicle(log, with_figures=True) if talk.log_file is not None else None
    told = Chronicle(say_on_stderr if talk.as_json else progress.say, with_figures=False) if talk.verbose else None

    def on_commit(machine: StudyMachine) -> None:
        for chronicle in (logged, told):
            if chronicle is not None:
                chronicle.on_commit(machine)
        progress.on_commit(machine)

    def say(line: str) -> None:
        log(line)
        progress.say(line)

    def warn_of(line: str) -> None:
        log(f"warning: {line}")
        warn(line)

    return Watcher(on_commit=on_commit, say=say, warn=warn_of)


def _exit_code(outcome: Outcome) -> int:
    return INTERRUPTED if outcome.interrupted and outcome.record.state != "failed" else exit_code_of(outcome.record)


def exit_code_of(record: StudyRecord) -> int:
    """Return the exit code of an ended study."""
    if record.state == "failed":
        return FAILED
    if record.state == "drained":
        return INTERRUPTED
    return 0 if any(trial.state == "complete" for trial in record.trials) else NOTHING_COMPLETE


class LogFileError(UserError):
    """The log file cannot be written."""


def check_log_file(path: Path | None) -> None:
    """Raise LogFileError if the log file cannot be written."""
    if path is None:
        return
    allowed = "a file that can be written to, in a folder that exists"
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise LogFileError(f"--log-file: {found(str(path), f'{allowed} ({error.strerror})')}") from None


@contextmanager
def writing(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that logs a line. A full disk ends the log, but not the study."""
    if path is None:
        yield lambda _line: None
        return
    handler = _Handler(path)
    loggers = [logging.getLogger(name) for name in OUR_PACKAGES]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler.write
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


class _Handler(logging.Handler):
    """Logging handler that also writes records and lines to a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._is_open = True

    def write(self, line: str) -> None:
        """Append a line with the time and escaped control characters."""
        if not self._is_open:
            return
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            with self.lock or nullcontext(), self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{now}  {escaped(line)}\n")
        except OSError as error:
            self._is_open = False
            echo(f"warning: --log-file: cannot write to {self._path} ({error.strerror}); the study continues", err=True)

    def emit(self, record: logging.LogRecord) -> None:
        self.write(f"{record.levelname.lower()}: {self.format(record)}")
        if logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


LOOK_SECONDS = 0.5  # least seconds between scans of all trials


class Chronicle:
    """Prints when trials start, pause, stop, end or fail, and every `LINE_SECONDS` the figures of the study."""

    def __init__(
        self, write: Callable[[str], None], *, with_figures: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._with_figures, self._clock = write, with_figures, clock
        self._states: dict[int, TrialState] | None = None
        self._decided: dict[int, Decided | None] = {}
        self._looked_at = self._told_at = -LINE_SECONDS
        self._pace = Pace()

    def on_commit(self, machine: StudyMachine) -> None:
        """Print the changes since the last commit."""
        self._pace.saw(machine)
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS and not machine.finished:
            return
        self._looked_at = now
        for line in self._news(machine):
            self._write(line)
        if self._with_figures and (now - self._told_at >= LINE_SECONDS or machine.finished):
            self._told_at = now
            self._write(machine_picture(machine, self._pace).line)

    def _news(self, machine: StudyMachine) -> Iterator[str]:
        known = self._states
        if known is None:  # decisions of earlier controllers are no news
            known = {id_: trial.state for id_, trial in machine.trials.items() if trial.state != "running"}
        for id_, trial in machine.trials.items():
            before = known.get(id_)
            if trial.number is not None and before in {None, "queued"}:
                where = "" if trial.attempt is None else f" on slots {','.join(map(str, trial.attempt.slots))}"
                yield f"trial {trial.number} starts{where}: {params_text(trial.params)}"
            if before == "running" and trial.state == "paused" and trial.paused_by in _OUTSIDE:
                yield f"trial {trial.number} is paused at epoch {trial.epochs_done}{_OUTSIDE[trial.paused_by]}"
            elif trial.decided is not self._decided.get(id_) and trial.decided is not None:
                yield from _decision(trial, trial.decided)
            elif before == "paused" and trial.state == "running":
                yield f"trial {trial.number} starts again after epoch {trial.resume_epoch}"
            if before != trial.state and trial.state in {"complete", "failed"}:
                yield _end(machine, trial)
            self._decided[id_] = trial.decided
        self._states = {id_: trial.state for id_, trial in machine.trials.items()}


_OUTSIDE: Mapping[str | None, str] = {
    "drain": ": the study ends, or another epoch would probably exceed its budget",
    "fault": ": its attempt was lost",
}
"""Why a trial pauses without a decision about its results."""


def _decision(trial: Trial, made: Decided) -> Iterator[str]:
    if made.action in HALTS:
        yield f"trial {trial.number} is {HALTS[made.action]} at epoch {made.epoch}: {made.reason}"
    elif trial.attempts > 1:
        yield f"trial {trial.number} continues from epoch {made.epoch}: {made.reason}"


def _end(machine: StudyMachine, trial: Trial) -> str:
    if trial.state == "failed":
        return f"trial {trial.number} has failed at epoch {trial.epochs_done} ({trial.failure})"
    names = [one.metric for one in machine.setup.objectives if one.metric in trial.last_metrics]
    values = values_text({name: trial.last_metrics[name] for name in names})
    return f"trial {trial.number} is complete after {number_text(trial.epochs_done)} epochs: {values}"
