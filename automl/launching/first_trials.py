"""Warns early if no training fits the budget, no model is saved, or trials write the same file."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from reports.phrases import duration, plural
from studies.control.machine.state import StudyMachine
from trainers.commands.command import HOW_TO_KEEP, Command

_ENOUGH_EPOCHS = 3  # number of epochs before their duration is judged; the first epoch of a process takes longer


class FirstTrials:
    """Warns once if no training fits into the budget, and once if a command's first trial saves no model."""

    def __init__(self, seconds: float, command: Command | None, warn: Callable[[str], None]) -> None:
        self._seconds, self._warn = seconds, warn
        self._is_timed = not math.isfinite(seconds)
        self._is_kept = command is None or "checkpoint_folder" not in dict(command.names())

    def look(self, machine: StudyMachine) -> None:
        """Check the study after a commit."""
        if self._is_timed and self._is_kept:
            return
        epochs, trials = machine.setup.epochs, machine.trials.values()
        measured = [trial for trial in trials if trial.epoch_seconds]
        if not self._is_timed and sum(trial.epochs_done for trial in measured) >= min(_ENOUGH_EPOCHS, epochs):
            self._is_timed = True
            full = epochs * min(min(trial.whole_epoch_seconds) for trial in measured)
            if full > self._seconds:
                self._warn(
                    f"no trial will reach its last epoch: {plural(epochs, 'epoch')} take at least {duration(full)}, by "
                    f"the fastest epoch so far, and the budget lasts {duration(self._seconds)}. Take a larger budget, "
                    "or fewer epochs (training.epochs)"
                )
        if not self._is_kept:
            first = min(machine.setup.milestones)
            live = [one for one in measured if one.state in {"running", "paused"} and one.epochs_done >= first]
            self._is_kept = bool(live)
            if live and all(one.resume_checkpoint is None for one in live):
                self._warn(f"trial {live[0].number} had no file in {{checkpoint_folder}} yet. {HOW_TO_KEEP}")


class SharedFiles:
    """Warns once if two trials of a command have written the same model file in their working folder.

    A file that changed between two starts or stops of trials was written by a trial that ran then or shortly before. If
    no single trial can have written a file each time, several have. Logs and tables, to which several trials may
    append, are ignored.
    """

    def __init__(self, command: Command | None, base_folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = None if command is None or command.has_own_folder else command.script_folder(base_folder)
        self._warn = warn
        self._changed_at = dict(_models_in(self._folder)) if self._folder else {}
        self._ran = deque[frozenset[int]]([frozenset()], maxlen=3)  # the last is what runs now
        self._writers: dict[Path, frozenset[int]] = {}

    def look(self, machine: StudyMachine) -> None:
        """Check the study after a commit."""
        if self._folder is None:
            return
        running = frozenset(trial.id for trial in machine.running)
        if running == self._ran[-1]:
            return
        possible = frozenset().union(*self._ran)
        self._ran.append(running)
        for path, changed_at in _models_in(self._folder):
            if changed_at == self._changed_at.get(path) or not possible:
                continue
            self._changed_at[path] = changed_at
            self._writers[path] = self._writers.get(path, possible) & possible
            if not self._writers[path]:
                self._warn(
                    f"several trials have written {path.relative_to(self._folder)}, so it is no single trial's model. "
                    "Write to {trial_folder}, or set task.folder to it"
                )
                self._folder = None
                return
        if len(self._changed_at) > _MOST_FILES:  # each look would take long
            self._folder = None


_MOST_FILES = 2_000
_ENDINGS = "bin ckpt h5 joblib keras model msgpack npz onnx pickle pkl pt pth safetensors"
_MODELS = frozenset(f".{ending}" for ending in _ENDINGS.split())


def _models_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield model files in a folder and its direct subfolders, with their last change in nanoseconds."""
    with suppress(OSError):
        for path in chain(folder.glob("*"), folder.glob("*/*")):
            if path.suffix in _MODELS:
                with suppress(OSError):
                    if path.is_file() and not path.is_symlink():
                        yield path, path.stat().st_mtime_ns
