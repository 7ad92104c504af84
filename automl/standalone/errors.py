"""Errors of model files and rows, as one line."""


class ModelError(Exception):
    """The file or folder is no model of this format."""


class UntrustedProgramError(ModelError):
    """Nobody whom the user trusts is known to have made the program file, which could run code."""


class InputError(ValueError):
    """A row does not fit the model. The message names the row, the place, the value and valid values."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
