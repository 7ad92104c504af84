"""What can go wrong between a request and its answer, and before the first one."""

from __future__ import annotations


class ServeError(Exception):
    """The server cannot start as it was asked to, or a model cannot be served; one line that says what is allowed."""


class RequestError(Exception):
    """A request is not answered; one line that names the place.

    Attributes:
        retry_seconds: When the same request may succeed, for the header Retry-After; None if it never will.
    """

    def __init__(self, status: int, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_seconds = status, retry_seconds


class BrokenDeviceError(RequestError):
    """The device answers nothing more in this process, whatever comes next."""
