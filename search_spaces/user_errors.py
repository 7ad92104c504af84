"""Errors that end a command with one line instead of a traceback; all other exceptions are mistakes in this program.

    Exception
    ├── UserError   the input is wrong, and the message says what is allowed
    │   └── SpecError, SpaceError, StoreError, PoolError, SearchError, TaskLoadError, CurvesError, DashboardError
    └── RunError    the input is right, and the work failed
        └── TrainingError, LeaseLostError, StoppedError

The two kinds differ in the exit code.
"""


class UserError(Exception):
    """The input is wrong: the message names the place, the value and what is allowed. Change the input."""

    def _render_traceback_(self) -> list[str]:
        """Let IPython show the message alone in place of a traceback, as the command line does."""
        return [f"{type(self).__name__}: {self}"]


class RunError(Exception):
    """The work failed although the input is right. Look at the cause; the same command may succeed later."""


class StoppedError(RunError):
    """The work was ended early by a signal or `automl stop` (`by_command`), and may go on elsewhere: exit code 130."""

    def __init__(self, message: str, *, by_command: bool = False) -> None:
        super().__init__(message)
        self.by_command = by_command
