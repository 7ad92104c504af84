"""Errors that become HTTP answers. Each class has its own next step for the caller."""

from search_spaces.messages import UserError


class ForbiddenError(UserError):
    """The caller's role does not allow the request. Ask a user whose role does. Status 403."""


class MissingError(UserError):
    """The object does not exist, or the caller may not see it. Status 404 for both."""


class ConflictError(UserError):
    """The state of a study or job does not allow the request. Status 409."""


class TooLargeError(UserError):
    """The data are too large. Status 413."""


class BusyError(UserError):
    """Too many requests of this kind. Try again in a few seconds. Status 429."""
