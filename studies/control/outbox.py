"""Results of a step of the state machine: rows to commit together, and commands in order."""

from __future__ import annotations

from studies.control.checkpoints import Released
from studies.control.machine_commands import Command, DeleteFile, Step
from studies.storage.changes import Change, CheckpointKept


class Outbox:
    """Collects changes and commands until the step is handed over."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._commands: list[Command] = []

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self._changes)

    def write(self, *changes: Change) -> None:
        """Add rows to commit, in this order."""
        self._changes += changes

    def order(self, *commands: Command) -> None:
        """Add commands to carry out, in this order."""
        self._commands += commands

    def release(self, released: Released) -> None:
        """Order the deletion of files that are no longer needed, and remove them from their epochs' rows."""
        self.order(*(DeleteFile(path=path) for path in released.files))
        self.write(
            *(CheckpointKept(trial_id=trial_id, epoch=epoch, checkpoint=None) for trial_id, epoch in released.epochs)
        )

    def take(self) -> Step:
        """Return all rows and commands, and empty the outbox."""
        step = Step(changes=tuple(self._changes), commands=tuple(self._commands))
        self._changes, self._commands = [], []
        return step
