"""The two kinds of errors that end a command with one line instead of a traceback.

    Exception
    ├── UserError   the input is wrong, and the message says what is allowed
    │   └── SpecError, SpaceError, StoreError, PoolError, SearchError, TaskLoadError, CurvesError, DashboardError
    └── RunError    the input is right, and the work failed
        └── TrainingError, LeaseLostError, StoppedError

Everything else is a mistake in this program.
"""

from __future__ import annotations


class UserError(Exception):
    """The input is wrong: the message names the place, the value and what is allowed. Change the input."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it in place of a traceback: the message alone, as the command line does."""
        return [f"{type(self).__name__}: {self}"]


class RunError(Exception):
    """The work failed although the input is right. Look at the cause; the same command may succeed later."""


class StoppedError(RunError):
    """Somebody ended the work before its time, by a signal or `automl stop`: exit code 130.

    Attributes:
        by_command: Whether `automl stop` did; otherwise a signal did, which may mean that the work goes on elsewhere.
    """

    def __init__(self, message: str, *, by_command: bool = False) -> None:
        super().__init__(message)
        self.by_command = by_command
