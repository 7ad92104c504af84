"""What is wrong with a model's file or with a row, on one line."""

from __future__ import annotations


class ModelError(Exception):
    """A file or folder is no model of this format."""


class UnsafeProgramError(ModelError):
    """A program file holds what could be code, or is none of ours."""


class InputError(ValueError):
    """A row is not what the model takes; names the row, the place, the value and what is allowed."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
