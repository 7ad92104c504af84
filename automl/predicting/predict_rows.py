"""Predicts the rows of a file with an exported model."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

from automl.exporting.atomic_outputs import ExportError
from automl.predicting.row_files import Row, cells_of, rows_of
from automl.standalone.batches import Encoded
from automl.standalone.errors import InputError
from automl.standalone.model import Model, load, load_problem
from automl.standalone.table_rows import TableRows
from search_spaces.machine_resources import within_free_memory
from search_spaces.messages import listed, shown

_Encoded: TypeAlias = tuple[str, str | None, Encoded]  # place of a row, its file name (or None), and its numbers
_FILE = "file"
ENDINGS = (".csv", ".jsonl", ".parquet")
_ROWS_OF_A_GROUP = 10_000


def opened_model(path: Path, device: str = "cpu", *, trust: bool = False) -> Model:
    """Load an exported model. Raises ExportError if it is invalid, untrusted, or needs a missing package."""
    try:
        return load(path, device, trust=trust)
    except Exception as error:
        raise ExportError(load_problem(path, error)) from error


def predict_file(
    model: Model,
    data: Path,
    out: Path | None,
    *,
    column: str | None = None,
    id_column: str | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> int:
    """Write a prediction for each row. Returns the number of rows. Raises ExportError for a bad row or file.

    `id_column` is a column to write beside the predictions. `on_note` receives a line about unused columns.
    """
    done, form = 0, model.manifest["rows"]
    with within_free_memory(str(data), ExportError), answers_to(out) as sink:
        rows = _encoded(model, _needed(model, data, rows_of(data, form, column), id_column, on_note))
        ids = None if id_column is None else cells_of(data, form, id_column, column)
        while some := list(islice(rows, model.batch)):
            _, names, _ = zip(*some, strict=True)
            for name, answer in zip(names, _answered(model, some), strict=True):
                done += 1
                named = {} if ids is None or id_column is None else {id_column: next(ids)}
                sink.add(done, {**named, **({} if name is None else {_FILE: name}), **answer})
            if on_batch is not None:
                on_batch(done)
    return done


def _needed(
    model: Model, data: Path, rows: Iterator[Row], id_column: str | None, on_note: Callable[[str], None]
) -> Iterator[Row]:
    """Yield rows of a table without unused columns. Incomplete rows are unchanged."""
    known, noted = frozenset(model.manifest["rows"].get("known", ())), frozenset[str]()
    needed = frozenset(getattr(model.rows, "columns", ()))
    for where, row in rows:
        if not isinstance(row, Mapping) or model.rows.kind != TableRows.kind or not needed <= row.keys():
            yield where, row
            continue
        extra = row.keys() - known
        if extra - noted - {id_column}:
            unused = listed(shown(name) for name in row if name in extra - noted and name != id_column)
            on_note(f"{data}: the model was trained without {unused}, which is ignored.")
            noted |= extra
        yield where, {name: cell for name, cell in row.items() if name in known} if extra else row


def _encoded(model: Model, rows: Iterator[Row]) -> Iterator[_Encoded]:
    are_files = model.rows.kind == "image"
    for number, (where, row) in enumerate(rows):
        try:
            yield where, str(row) if are_files else None, model.rows.encode(row, number)
        except InputError as error:
            message = str(error).removeprefix(f"row {number + 1}")
            raise ExportError(f"{where}{message}") from None
        except Exception as error:  # the manifest may be damaged
            raise _failed(where, error) from error


def _answered(model: Model, some: Sequence[_Encoded]) -> list[dict[str, Any]]:
    """Predict a batch. The error of a failure names the row that caused it."""
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
    """Return a summary as plain values."""
    known = model.manifest
    return {
        "model": name,
        "study": known.get("study"),
        "trial": known.get("trial"),
        "epoch": known.get("epoch"),
        "rows": rows,
        "out": None if out is None else str(out.absolute()),
    }


@contextmanager
def answers_to(out: Path | None) -> "Iterator[_Csv | _JsonLines | _Parquet]":
    """Yield a writer that replaces the file at the end; None prints CSV. Raises ExportError if writing fails."""
    if out is None:
        yield _Csv(sys.stdout)
        return
    if out.suffix not in ENDINGS:
        raise ExportError(f"--out: found {str(out)!r}, allowed: a file that ends in {', '.join(ENDINGS)}")
    path = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        if out.suffix == ".parquet":
            parquet = _Parquet(path)
            yield parquet
            parquet.close()
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                yield _Csv(file) if out.suffix == ".csv" else _JsonLines(file)
        path.replace(out)
    except OSError as error:
        raise ExportError(f"--out: {out} cannot be written: {error.strerror or error}") from None
    finally:
        path.unlink(missing_ok=True)


def flat(number: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prediction as a flat row, with a column p(LABEL) for each class probability."""
    cells: dict[str, Any] = {"row": number}
    for name, value in answer.items():
        if name == "probabilities" and "label" in answer:
            cells |= {f"p({label})": share for label, share in value.items()}
        elif isinstance(value, Mapping | list):
            cells[name] = json.dumps(value)
        else:
            cells[name] = value
    return cells


class _Csv:
    def __init__(self, file: IO[str]) -> None:
        self._writer, self._has_names = csv.writer(file, lineterminator="\n"), False

    def add(self, number: int, answer: Mapping[str, Any]) -> None:
        cells = flat(number, answer)
        if not self._has_names:
            self._writer.writerow(cells)
            self._has_names = True
        self._writer.writerow(cells.values())


class _JsonLines:
    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def add(self, number: int, answer: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"row": number, **answer}, ensure_ascii=False) + "\n")


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, list[dict[str, Any]]()
        self._writer: Any = None

    def add(self, number: int, answer: Mapping[str, Any]) -> None:
        self._rows.append(flat(number, answer))
        if len(self._rows) >= _ROWS_OF_A_GROUP:
            self._write()

    def close(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pa_parquet

        table = pa.Table.from_pylist(self._rows)
        self._writer = self._writer or pa_parquet.ParquetWriter(self._path, table.schema)
        if self._rows:
            self._writer.write_table(table)
        self._rows.clear()
