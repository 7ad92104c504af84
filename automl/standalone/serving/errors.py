"""Errors of requests and of the server's start."""


class ServeError(Exception):
    """The server cannot start, or a model cannot be served. The message is one line with the cure."""


class RequestError(Exception):
    """A request fails. `retry_seconds` is the header Retry-After, or None if a retry cannot succeed."""

    def __init__(self, status: int, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_seconds = status, retry_seconds


class BrokenDeviceError(RequestError):
    """The device will fail until this process ends."""
