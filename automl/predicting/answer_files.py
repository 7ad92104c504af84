"""Writes predictions to a CSV, JSON lines or Parquet file, which is complete or absent."""

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from automl.exporting.export_errors import ExportError

ENDINGS = (".csv", ".jsonl", ".parquet")
_ROWS_OF_A_GROUP = 10_000


@contextmanager
def answers_to(out: Path | None) -> "Iterator[_Csv | _JsonLines | _Parquet]":
    """Yield a sink whose file is replaced once it is complete; None prints CSV. ExportError if it cannot be written."""
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
    """Return a prediction as one row: the number of its row, and a column p(LABEL) for each class probability."""
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
