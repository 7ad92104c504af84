"""What can go wrong with an export, a registry or a served model, as a line for its user."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.user_errors import RunError, UserError


class ExportError(UserError):
    """A model cannot leave the study as asked; one line that says what is allowed."""


@contextmanager
def as_a_line(what: str) -> Iterator[None]:
    """Tell what the user's code raised by its last line; that there is no test part is left to who asked for it.

    Raises:
        ExportError: The user's code raised; `what` was asked for.
        NoTestPartError: The task has no test part.
    """
    from trainers.contract.user_code import error_line
    from trainers.protocol import NoTestPartError, TaskError

    try:
        yield
    except NoTestPartError:
        raise
    except TaskError as error:
        raise ExportError(f"{what}: {error_line(str(error))}") from error
    except (UserError, RunError):
        raise
    except Exception as error:
        line = error_line("".join(traceback.format_exception(error)))
        raise ExportError(f"{what}: the task's own code raised {line}") from error
