"""Logs the loss of each batch of a rank as CSV, to find a rank or batch with unusual losses."""

import csv
import math
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import torch
from torch import Tensor

from trainers.loop.step_counter import StepScalars

COLUMNS = ("epoch", "step", "samples", "loss", "seconds")
_FLUSH_SECONDS = 1.0
_BUFFER_BYTES = 2**20


def batch_log_path(folder: str | Path, rank: int) -> Path:
    """Return the path of a rank's log in `folder`."""
    return Path(folder) / f"rank-{rank}.csv"


class BatchLog:
    """Writes a row for each training batch of a rank. Raises OSError if the file cannot be created.

    Losses stay on the device until written, about once a second, so a step does not wait for the device.
    An existing file keeps the rows of the first `steps_done` steps. A failed log ends with a line on stderr.

    | column | is |
    |---|---|
    | epoch | number of the epoch, from 1 |
    | step | number of the optimizer step in the trial, from 1; `accumulate` batches share a step |
    | samples | number of samples of the batch |
    | loss | mean loss of these samples, weighted if the task has weights |
    | seconds | time from waiting for the batch to the end of its backward pass and step; on a GPU, to their launch |
    """

    def __init__(self, path: Path, device: torch.device, steps_done: int) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_rows(path, steps_done)
        self._losses = StepScalars(device)
        self._rows: list[tuple[int, int, int, float]] = []
        self._file: IO[str] | None = path.open("a", newline="", buffering=_BUFFER_BYTES)
        self._flushed_at = time.monotonic()

    def __enter__(self) -> "BatchLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            self._write()
        except RuntimeError:  # a failed device gives no losses, and its own error is already raised
            if error is None:
                raise
        self._close()

    def add(self, *, epoch: int, step: int, samples: int, loss: Tensor, seconds: float) -> None:
        """Add a row for a batch."""
        if self._file is None:
            return
        self._rows.append((epoch, step, samples, seconds))
        self._losses.add(loss)
        if self._losses.is_full or time.monotonic() - self._flushed_at >= _FLUSH_SECONDS:
            self._write()

    def end_epoch(self) -> None:
        """Write all rows now, because this process may be ended at any moment after its last report."""
        self._flushed_at = -math.inf
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        rows = zip(self._rows, self._losses.take(), strict=True)
        try:
            csv.writer(self._file).writerows(
                (epoch, step, samples, f"{loss:.9g}", f"{seconds:.6f}")
                for (epoch, step, samples, seconds), loss in rows
            )
            if time.monotonic() - self._flushed_at >= _FLUSH_SECONDS:
                self._file.flush()
                self._flushed_at = time.monotonic()
        except OSError as error:
            self._close(error)
        self._rows.clear()

    def _close(self, failure: OSError | None = None) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            failure = failure or error
        if failure is not None:
            print(f"warning: --rank-logs: {self._path} ends here: {failure.strerror or failure}", file=sys.stderr)


def _keep_rows(path: Path, steps_done: int) -> None:
    rows: list[list[str]] = []
    if steps_done and path.exists():
        with path.open(newline="") as file:
            found = csv.reader(file)
            if next(found, None) == list(COLUMNS):
                # The last row may have been cut off.
                whole = (row for row in found if len(row) == len(COLUMNS) and row[1].isdecimal())
                rows = [row for row in whole if int(row[1]) <= steps_done]
    new = path.with_name(f".{path.name}.new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    new.replace(path)
