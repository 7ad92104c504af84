"""Errors that become HTTP answers, named by the caller's next step."""

from __future__ import annotations

from search_spaces.user_errors import UserError


class ForbiddenError(UserError):
    """The role does not allow this: ask somebody whose role does. Status 403."""


class MissingError(UserError):
    """There is no such thing, or the caller may not see it; the answer is the same. Status 404."""


class ConflictError(UserError):
    """The state does not allow this now. Status 409."""


class TooLargeError(UserError):
    """The data are too large. Status 413."""


class BusyError(UserError):
    """Too many of these run now: ask again in some seconds. Status 429."""
