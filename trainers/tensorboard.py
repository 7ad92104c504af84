"""Measurements as TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainers.protocol import Measurement


class TensorBoardMissingError(Exception):
    """The package is not installed."""


class TensorBoard:
    """Writes each metric, and what is known of the optimizer, as a scalar with the epoch as its step.

    Args:
        folder: Where TensorBoard is told to look; made if it is not there.

    Raises:
        TensorBoardMissingError: The package is not installed.
        OSError: The folder cannot be made or written to.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TensorBoardMissingError("the package tensorboard is not installed") from None
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, measurement: Measurement) -> None:
        """Write an epoch; it can be seen at once."""
        for name, value in measurement.figures.items():
            self._writer.add_scalar(name, value, measurement.epoch)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        self._writer.close()
