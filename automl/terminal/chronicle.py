"""Trial events of a running study as lines, for `--verbose` and log files."""

import time
from collections.abc import Callable, Iterator

from automl.terminal.picture import HALTS, LINE_SECONDS
from automl.terminal.progress import Pace, machine_picture
from automl.terminal.texts import number_text, params_text, values_text
from studies.control.machine.live_trials import Trial
from studies.control.machine.state import StudyMachine
from studies.records.records import TrialState
from studies.storage.writing.changes import Decided

LOOK_SECONDS = 0.5  # least seconds between scans of all trials


class Chronicle:
    """Reports starts, pauses, stops, ends and failures of trials, and at times the figures of the study."""

    def __init__(
        self, write: Callable[[str], None], *, with_figures: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._with_figures, self._clock = write, with_figures, clock
        self._states: dict[int, TrialState] | None = None
        self._decided: dict[int, Decided | None] = {}
        self._looked_at = self._told_at = -LINE_SECONDS
        self._pace = Pace()

    def on_commit(self, machine: StudyMachine) -> None:
        """Report changes since the last commit."""
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
            if trial.decided is not self._decided.get(id_) and trial.decided is not None:
                yield from _decision(trial, trial.decided)
            if before != trial.state and trial.state in {"complete", "failed"}:
                yield _end(machine, trial)
            self._decided[id_] = trial.decided
        self._states = {id_: trial.state for id_, trial in machine.trials.items()}


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
