"""Errors about model files and rows, with messages of one line."""


class ModelError(Exception):
    """The file or folder does not hold a model in this format."""


class UntrustedProgramError(ModelError):
    """The origin of a program file, which can run code, is unknown."""


class InputError(ValueError):
    """A row does not fit the model. The message names row, place, value and valid values."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
