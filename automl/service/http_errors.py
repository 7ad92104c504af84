"""Errors that become HTTP answers, named by the caller's next step."""

from search_spaces.messages import UserError


class ForbiddenError(UserError):
    """The role does not allow this: ask a user whose role does. Status 403."""


class MissingError(UserError):
    """It does not exist, or the caller may not see it; the answer is the same. Status 404."""


class ConflictError(UserError):
    """The state does not allow this now. Status 409."""


class TooLargeError(UserError):
    """The data are too large. Status 413."""


class BusyError(UserError):
    """Too many requests of this kind run now: ask again in a few seconds. Status 429."""
