"""Errors of exports, registries and served models, as one line for the user."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.user_errors import RunError, UserError


class ExportError(UserError):
    """A model cannot be exported in this way. The message names the cure."""


@contextmanager
def as_a_line(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into an ExportError with its last line. NoTestPartError passes through."""
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
