"""Predictions for all rows of a file, by an exported model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from automl.exporting.export_errors import ExportError
from automl.predicting.answer_files import answers_to
from automl.predicting.row_files import Row, rows_of
from automl.standalone.batches import Encoded
from automl.standalone.errors import InputError
from automl.standalone.model import Model, load, load_problem

_Encoded: TypeAlias = tuple[str, str | None, Encoded]
"""Place of a row, the name of its file if it has one, and its numbers."""
_FILE = "file"


def opened_model(path: Path, device: str = "cpu") -> Model:
    """Return an exported model. ExportError if it is invalid, could run code, or needs a missing package."""
    try:
        return load(path, device)
    except Exception as error:
        raise ExportError(load_problem(path, error)) from error


def predict_file(
    model: Model,
    data: Path,
    out: Path | None,
    *,
    column: str | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> int:
    """Write a prediction for each row. Returns their number. ExportError for a bad row, or a file that fails."""
    done = 0
    rows = _encoded(model, rows_of(data, model.manifest["rows"], column))
    with answers_to(out) as sink:
        while some := list(islice(rows, model.batch)):
            _, names, _ = zip(*some, strict=True)
            for name, answer in zip(names, _answered(model, some), strict=True):
                done += 1
                sink.add(done, answer if name is None else {_FILE: name, **answer})
            if on_batch is not None:
                on_batch(done)
    return done


def _encoded(model: Model, rows: Iterator[Row]) -> Iterator[_Encoded]:
    are_files = model.rows.kind == "image"
    for number, (where, row) in enumerate(rows):
        try:
            yield where, str(row) if are_files else None, model.rows.encode(row, number)
        except InputError as error:
            message = str(error).removeprefix(f"row {number + 1}")
            raise ExportError(f"{where}{message}") from None


def _answered(model: Model, some: Sequence[_Encoded]) -> list[dict[str, Any]]:
    """Return the predictions of a batch. If the model fails, the error names the row."""
    try:
        return model.answered([encoded for _, _, encoded in some])
    except Exception as error:
        for where, _, encoded in some:
            try:
                model.answered([encoded])
            except Exception as alone:
                raise _failed(where, alone) from alone
        raise _failed(f"{some[0][0]} and {len(some) - 1} more", error) from error


def _failed(where: str, error: Exception) -> ExportError:
    reason = " ".join(str(error).split())[:120]
    return ExportError(f"{where}: the model fails with this row ({type(error).__name__}: {reason})")


def summary(model: Model, name: str, rows: int, out: Path | None) -> dict[str, Any]:
    """Return a summary of the predictions as plain values."""
    known = model.manifest
    return {
        "model": name,
        "study": known.get("study"),
        "trial": known.get("trial"),
        "epoch": known.get("epoch"),
        "rows": rows,
        "out": None if out is None else str(out.absolute()),
    }
