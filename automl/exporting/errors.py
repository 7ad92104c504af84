"""What can go wrong with an export, a registry or a served model, as a line for its user."""

from __future__ import annotations

from search_spaces.errors import UserError


class ExportError(UserError):
    """A model cannot leave the study as asked; one line that says what is allowed."""
