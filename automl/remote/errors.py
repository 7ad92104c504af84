"""Errors of a service as the command line tells them: one line, and an exit code by what helps."""

from __future__ import annotations

from search_spaces.errors import RunError, UserError


class RefusedError(UserError):
    """The service refuses the request: change it. Exit code 2.

    Attributes:
        status: Status of the answer, such as 404.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreachableError(RunError):
    """The service does not answer, or cannot now: the same command may succeed later. Exit code 1."""
