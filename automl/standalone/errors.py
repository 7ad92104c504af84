"""Errors of model files and rows, in one line."""

from __future__ import annotations


class ModelError(Exception):
    """The file or folder is no model of this format."""


class UnsafeProgramError(ModelError):
    """The program file contains what could be code, or is not ours."""


class InputError(ValueError):
    """A row does not fit the model; names the row, the place, the value and what is allowed."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
