"""Errors of the service that are answers over HTTP, each by what the caller can do about it."""

from __future__ import annotations

from search_spaces.user_errors import UserError


class ForbiddenError(UserError):
    """The role does not allow this: ask somebody whose role does. Status 403."""


class MissingError(UserError):
    """There is no such thing, or the caller may not see it, which is told alike. Status 404."""


class ConflictError(UserError):
    """The state does not allow this now. Status 409."""


class TooLargeError(UserError):
    """More was sent than is taken. Status 413."""


class BusyError(UserError):
    """Too much of this is done now: ask again in some seconds. Status 429."""
