"""Streams rows from files, which may be larger than the memory."""

import codecs
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from automl.exporting.atomic_outputs import ExportError
from search_spaces.messages import listed, meant, near_file, shown
from trainers.tasks.pictures.images import ENDINGS, image_files
from trainers.tasks.table.file_endings import DELIMITERS, PARQUET, QUOTED, doubled, is_index

_JSON_LINES = (".jsonl", ".ndjson")
_TEXT = ".txt"
_UTF_8, _UTF_8_SIGNED = "utf-8", "utf-8-sig"
_NUMBERED = re.compile(r"column_(\d+)")
_QUOTED = re.compile(QUOTED)
_BATCH = 1024

Row = tuple[str, Any]  # place of a row, for messages and the first column of predictions, and the row


def rows_of(path: Path, form: Mapping[str, Any], column: str | None = None) -> Iterator[Row]:
    """Yield the rows of a file or a folder of images. Raises ExportError if there are no such rows.

    Args:
        path: CSV, TSV, Parquet or JSON lines (text also as .gz); texts on lines; an image, or a folder of images.
        form: `rows` of the model's manifest.
        column: Column with the texts or images; None detects it.
    """
    kind = form["kind"]
    if not path.exists():
        cure = near_file(path) or f". Name a file or folder with {_wanted(kind)}"
        raise ExportError(f"{path} does not exist{cure}")
    if path.is_dir() or (kind == "image" and path.suffix.lower() in ENDINGS):
        return _images(path, kind)
    if kind == "text" and _ending(path) == _TEXT:
        return _lines(path, form)
    table = _table(path, form, column)
    first = next(table, None)
    if first is None:
        raise ExportError(f"{path} is empty. Name a file with {_wanted(kind)}")
    return _as_taken(path, chain([first], table), form, column)


def cells_of(path: Path, form: Mapping[str, Any], name: str, column: str | None = None) -> Iterator[Any]:
    """Yield a table's cells in a column. Raises ExportError if a row has no such cell."""
    if path.is_dir() or _ending(path) in {_TEXT, *ENDINGS}:
        raise ExportError(f"--id: {path} has no columns. Name a table")
    for where, row in _table(path, form, column):
        if not isinstance(row, Mapping) or name not in row:
            names = list(row) if isinstance(row, Mapping) else []
            hint = meant(name, names)
            raise ExportError(f"--id: {where} has no column {name!r}. It has {listed(map(shown, names[:40]))}{hint}")
        yield row[name]


def _wanted(kind: str) -> str:
    return {"table": "rows of a table", "text": "texts", "image": "images", "array": "rows of numbers"}[kind]


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _images(path: Path, kind: str) -> Iterator[Row]:
    if kind != "image":
        raise ExportError(f"{path} is a folder. Name a file with {_wanted(kind)}")
    files = [path] if path.is_file() else image_files(path)
    if not files:
        raise ExportError(f"{path} has no images (files that end in {listed(ENDINGS)})")
    return ((str(file), str(file)) for file in files)


def _lines(path: Path, form: Mapping[str, Any]) -> Iterator[Row]:
    with _opened(path, _encoding(form)) as file:
        number = 0
        for number, line in enumerate(file, start=1):
            yield f"{path}: line {number}", line.rstrip("\r\n")
        if not number:
            raise ExportError(f"{path} is empty. Write one text on each line")


def _table(path: Path, form: Mapping[str, Any], column: str | None) -> Iterator[Row]:
    ending = _ending(path)
    if ending in PARQUET:
        return _parquet(path)
    if ending in _JSON_LINES:
        return _json_lines(path)
    known = form["known"] if "known" in form else [one for one in (column or form.get("column"),) if one]
    return _csv(path, known, form)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        with pa_parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    cells = {name: cell for name, cell in row.items() if not is_index(name)}
                    yield f"{path}: row {number}", cells
    except (pa.ArrowInvalid, OSError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ExportError(f"{path} is not a Parquet file ({reason})") from None


def _json_lines(path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}: line {number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ExportError(f"{where}: {shown(line.strip()[:60])} is not JSON ({error})") from None


def _csv(path: Path, known: Sequence[str], form: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a CSV file's rows by column name, or by column_0, column_1, ... if training had no names."""
    with _opened(path, _encoding(form)) as file:
        head = file.readline().removeprefix("\ufeff")
        delimiter = "\t" if _ending(path) == ".tsv" else _delimiter(head, known, form.get("delimiter"))
        csv.field_size_limit(sys.maxsize)
        is_plain = form.get("delimiter") == delimiter and form.get("quoting") is False
        reader = csv.reader(
            chain([head], file),
            delimiter=delimiter,
            quoting=csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL,
            strict=True,
        )
        names: list[str] = []
        try:
            for cells in map(_unquoted, reader) if is_plain else reader:
                if not cells:
                    continue
                if not names:
                    names = [cell.strip() for cell in cells]
                    # As in a training file without column names.
                    is_row = bool(known) and all(map(_NUMBERED.fullmatch, known)) and not set(names) & set(known)
                    if not is_row:
                        names = [name or f"column_{number}" for number, name in enumerate(names)]
                        if twice := doubled(names):
                            columns = listed(map(shown, twice))
                            problem = f"the column {columns} appears twice. Give each column its own name"
                            raise ExportError(f"{path}: line 1: {problem}")
                        continue
                    names = [f"column_{number}" for number in range(len(cells))]
                where = f"{path}: line {reader.line_num}"
                if len(cells) != len(names):
                    there = f"{len(cells)} columns, but the first line has {len(names)}"
                    raise ExportError(
                        f"{where}: found {there}, with the delimiter {delimiter!r}. Correct the line, or use one "
                        "delimiter in the whole file"
                    )
                yield where, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise ExportError(f"{path}: line {reader.line_num}: broken CSV ({error})") from None


def _delimiter(head: str, known: Sequence[str], trained: object) -> str:
    usual = str(trained) if isinstance(trained, str) and len(trained) == 1 and trained not in '"\r\n' else ""
    there = [one for one in dict.fromkeys(usual + DELIMITERS) if one in head]

    def names(delimiter: str) -> int:
        cells = {cell.strip() for cell in next(csv.reader([head], delimiter=delimiter), [])}
        return len(cells.intersection(known))

    if not there:
        return DELIMITERS[0]
    best = max(there, key=names)
    return best if names(best) or best == usual else max(DELIMITERS, key=head.count)


def _unquoted(cells: list[str]) -> list[str]:
    """Remove quotation marks around whole cells. Other quotation marks belong to the text."""
    return [cell if (quoted := _QUOTED.fullmatch(cell)) is None else quoted[1] for cell in cells]


def _encoding(form: Mapping[str, Any]) -> str:
    encoding = str(form.get("encoding", _UTF_8))
    try:
        b" ".decode(encoding, "ignore")  # fails for codecs that are no encodings of texts
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise ExportError(f"rows.encoding of the model: found {encoding!r}, allowed: utf-8, latin-1, ...") from None


@contextmanager
def _opened(path: Path, encoding: str = _UTF_8) -> Iterator[IO[str]]:
    opener: Callable[..., Any] = gzip.open if path.name.endswith(".gz") else open
    try:
        name = _UTF_8_SIGNED if encoding == _UTF_8 else encoding
        with opener(path, "rb") as file, io.TextIOWrapper(file, encoding=name, newline="") as text:
            yield text
    except UnicodeDecodeError as error:
        what = "UTF-8" if encoding == _UTF_8 else f"{encoding}, the encoding of the training file"
        raise ExportError(f"{path}: byte 0x{error.object[error.start]:02x} is not {what}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"{path} cannot be read ({reason})") from None


def _as_taken(path: Path, rows: Iterator[Row], form: Mapping[str, Any], column: str | None) -> Iterator[Row]:
    kind = form["kind"]
    name = None
    for where, row in rows:
        if kind == "table" or not isinstance(row, Mapping):
            yield where, row
        elif kind == "array":
            yield where, _numbers(where, row, is_whole=not form["dtype"].startswith("float"))
        else:
            name = name or _column(path, list(row), form, column)
            if name not in row:
                raise ExportError(f"{where}: the column {name!r} is missing, which the model needs")
            yield where, _word(where, row[name])


def _word(where: str, cell: Any) -> str:
    if not isinstance(cell, bytes):
        return "" if cell is None else str(cell)
    try:
        return cell.decode()
    except UnicodeDecodeError as error:
        raise ExportError(f"{where}: byte 0x{cell[error.start]:02x} is not UTF-8") from None


def _column(path: Path, names: Sequence[str], form: Mapping[str, Any], column: str | None) -> str:
    for wanted in (column, None if column else form.get("column")):
        if wanted in names:
            return str(wanted)
    if column is None and len(names) == 1:
        return names[0]
    found = f"there is no column {column!r}" if column else "there are several columns"
    raise ExportError(f"{path}: {found}. Pass --column with one of {listed(map(shown, names))}")


def _numbers(where: str, row: Mapping[str, Any], *, is_whole: bool) -> list[float]:
    try:
        return [_number(cell, is_whole=is_whole) for cell in row.values()]
    except (TypeError, ValueError):
        bad = next(cell for cell in row.values() if not _is_number(cell))
        raise ExportError(f"{where}: found {shown(bad)}, allowed: numbers, after a first line of names") from None


def _number(cell: Any, *, is_whole: bool) -> float:
    """Convert a cell to a number. With `is_whole`, 7, "7" and 7.0 become an int."""
    if is_whole and isinstance(cell, int):
        return int(cell)
    if is_whole and isinstance(cell, str):
        with suppress(ValueError):
            return int(cell)  # exact, unlike a float above 2 ** 53
    number = float(cell)
    return int(number) if is_whole and number.is_integer() else number


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
