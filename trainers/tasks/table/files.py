"""Reads tables from CSV, TSV or Parquet files, and finds a row's line in its file, for messages.

Cells with text remain text here. `reading` decides the meaning of a column once the training rows are known.
"""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from automl.standalone.cells import is_missing, milliseconds_of, parts, value_of
from search_spaces.messages import listed, meant, near_file, shown
from trainers.protocol import TaskError
from trainers.tasks.table.file_endings import DELIMITERS, PARQUET, QUOTED, doubled, is_index

MISSING = ("", "?", "NA", "N/A", "n/a", "<NA>", "nan", "NaN", "null", "NULL", "None")
"""Cells that count as missing values, without surrounding spaces."""

_ENCODING = "utf-8"
_SAMPLE_CHARACTERS = 2**17
_HEADER_ROWS = 5000
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Format of a text file. None means detected."""

    delimiter: str | None = None
    header: bool | None = None  # the first row names the columns
    encoding: str = _ENCODING
    quoting: bool | None = None  # "..." may hold delimiters and line breaks
    missing: tuple[str, ...] = MISSING
    late: tuple[str, ...] = ()  # words of `missing` that `without_words` handles later, because they may be classes
    reading: int = 1  # version of the rules for header, delimiter and missing words


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table's columns as Arrow arrays: trimmed strings, or Parquet's types. null means missing."""

    path: Path
    form: Form | None  # format of the file; None for Parquet and for rows from Python
    columns: dict[str, Any]
    is_header_sure: bool = True
    index: tuple[str, ...] = ()  # columns without a name in the file, or pandas' index
    rows: Any = None  # numbers of the rows in the file; None for all rows

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.columns)

    def where(self, row: int) -> str:
        """Return the place of a row, counted from 0, for messages: "train.csv: line 17"."""
        row = row if self.rows is None else int(self.rows[row])
        if self.form is None:
            return f"{self.path}: row {row + 1}"
        wanted = row + bool(self.form.header)
        line = next((line for index, (line, _) in enumerate(_records(self.path, self.form)) if index == wanted), 0)
        return f"{self.path}: line {line}"


def read_table(path: str | Path, form: Form | None = None, *, expected: Sequence[str | int] = ()) -> Table:
    """Read a file. Files .parquet and .pq are Parquet, all others text with delimiters; .gz is unzipped.

    `expected` are possible names in a header, or column numbers, for detecting header and delimiter. Raises TaskError
    if the file is missing, empty, not in its encoding, or has rows of unequal length.
    """
    path, form = Path(path), form or Form()
    if path.name.lower().endswith(PARQUET):
        return _read_parquet(path, form)
    text = _text(path, form)
    if not text.strip():
        raise TaskError(f"{path}: the file is empty. Give a table with at least two rows")
    form = replace(form, delimiter=form.delimiter or _delimiter(path, text, expected, form.reading))
    columns, form = _parse(path, text, form)
    cleaned = [_clean(column, form) for column in columns]
    is_sure = True
    if form.header is None and form.reading > 1:
        has_header, is_sure = find_header([column.slice(0, _HEADER_ROWS) for column in cleaned], expected)
        form = replace(form, header=has_header)
    elif form.header is None:
        form = replace(form, header=_has_header(cleaned, [one for one in expected if isinstance(one, str)]))
    unnamed = [index for index, column in enumerate(cleaned) if form.header and column[0].as_py() is None]
    names = _names(path, cleaned) if form.header else tuple(f"column_{index}" for index in range(len(cleaned)))
    rows = [column[1:] if form.header else column for column in cleaned]
    if len(rows[0]) == 0:
        raise TaskError(f"{path}: there is a header, but no row. Give a table with at least two rows")
    columns_by_name = dict(zip(names, rows, strict=True))
    index = tuple(names[one] for one in unnamed)
    return Table(path=path, form=form, columns=columns_by_name, is_header_sure=is_sure, index=index)


def read_like(train: Table, path: str | Path, form: Form) -> Table:
    """Read another file with the columns of `train`, and return them in the same order."""
    if train.form is not None and form.header is None and not train.form.header:
        form = replace(form, header=False)
    has_names = train.form is None or train.form.header
    return same_columns(train, read_table(path, form, expected=train.names if has_names else ()))


def table_of(rows: Sequence[dict[str, object]], names: Sequence[str], form: Form | None) -> Table:
    """Return a table of columns from rows of Python values. Names that a row lacks are missing values."""
    columns = {
        name: _clean(pa.array([as_text(row.get(name)) for row in rows], pa.string()), form or Form()) for name in names
    }
    return Table(path=Path("rows"), form=None, columns=columns)


def find_column(table: Table, wanted: str | int, option: str, *, is_name_first: bool = False) -> str:
    """Return an option's column by name, number from 0 (or -1) or "last". `is_name_first` tries 1 as a name first."""
    names = table.names
    wanted = str(wanted) if is_name_first and str(wanted) in names else wanted
    if isinstance(wanted, str) and wanted in names:
        return wanted
    if wanted == "last":
        return names[-1]
    number = int(wanted) if isinstance(wanted, int) or wanted.removeprefix("-").isdigit() else None
    if number is not None and -len(names) <= number < len(names):
        return names[number]
    hint = meant(wanted, names)
    columns = f"{listed(names[:40])}, a number from 0 to {len(names) - 1}, or last"
    if table.form is not None and len(names) <= 2 and table.form.delimiter:
        hint += f" (delimiter {table.form.delimiter!r}; task_options.delimiter names another)"
    raise TaskError(f"{table.path}: found no column {shown(wanted)}, which {option} names; allowed: {columns}{hint}")


def same_columns(train: Table, other: Table) -> Table:
    """Return `other` with the columns of `train`, in the same order. Raises TaskError for other columns."""
    if train.form is not None and other.form is not None and not train.form.header:
        if len(train.names) != len(other.names):
            problem = f"found {len(other.names)} columns, allowed: {len(train.names)}, as in {train.path}"
            raise TaskError(f"{other.path}: {problem}")
        return replace(other, columns=dict(zip(train.names, other.columns.values(), strict=True)))
    missing = [name for name in train.names if name not in other.columns]
    extra = [name for name in other.names if name not in train.columns]
    if missing or extra:
        found = [f"found no column {listed(map(shown, missing))}"] if missing else []
        found += [f"found the column {listed(map(shown, extra))}"] if extra else []
        raise TaskError(f"{other.path}: {' and '.join(found)}, allowed: the columns of {train.path}")
    return replace(other, columns={name: other.columns[name] for name in train.names})


def texts(column: Any) -> Any:
    """Return a column as strings. 3.0 becomes "3", as in a CSV file."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):  # a direct cast would turn 0.35 into 0.35000000000000003
        column = pc.cast(pc.cast(column, pa.string()), pa.float64())
    if pa.types.is_floating(column.type) or pa.types.is_temporal(column.type):
        return pa.array([as_text(value) for value in column.to_pylist()], pa.string())
    return column if pa.types.is_string(column.type) else pc.cast(column, pa.string())


def as_written(form: Form | None) -> dict[str, Any]:
    """Return the training file's format as plain values, with which an exported model reads similar files."""
    if form is None:
        return {}
    written = {"delimiter": form.delimiter, "quoting": form.quoting}
    # Without the usual encoding, because earlier models have none, and are compared with new models.
    return written if form.encoding == _ENCODING else written | {"encoding": form.encoding}


def is_number(column: Any) -> Any:
    """Return whether strings are finite numbers; null for missing values."""
    return pc.match_substring_regex(column, _NUMBER)


def _read_parquet(path: Path, form: Form) -> Table:
    try:
        read = pa_parquet.read_table(_existing(path)).combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise TaskError(f"{path}: the file is not valid Parquet ({_line(error)})") from None
    if read.num_rows == 0 or read.num_columns == 0:
        raise TaskError(f"{path}: there are no rows. Give a table with at least two rows")
    names = [name for name in read.column_names if not is_index(name)]
    columns = {name: _one_chunk(read.column(name)) for name in names}
    pandas = json.loads((read.schema.metadata or {}).get(b"pandas", b"{}"))
    index = tuple(one for one in pandas.get("index_columns", ()) if one in names)
    cleaned = {name: _clean(column, form) for name, column in columns.items()}
    return Table(path=path, form=None, columns=cleaned, index=index)


def _one_chunk(column: Any) -> Any:
    joined = column.combine_chunks()
    joined = joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
    if pa.types.is_dictionary(joined.type):
        joined = joined.dictionary_decode()
    return pc.cast(joined, pa.string()) if pa.types.is_large_string(joined.type) else joined


def holds_numbers(column: Any) -> bool:
    """Return whether a column has a numeric type, as in Parquet."""
    return any(is_one(column.type) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def _clean(column: Any, form: Form) -> Any:
    if holds_numbers(column):
        numbers = pc.cast(column, pa.float64(), safe=False)
        nothing = [float(word) for word in form.missing if re.fullmatch(_NUMBER, word)]
        is_nothing = pc.or_(pc.is_nan(numbers), pc.is_in(numbers, pa.array(nothing, pa.float64())))
        return pc.if_else(is_nothing, pa.scalar(None, column.type), column)
    if not pa.types.is_string(column.type):
        return column
    trimmed = pc.utf8_trim_whitespace(column)
    return _without(trimmed, [word for word in form.missing if word not in form.late])


def _without(column: Any, words: Sequence[str]) -> Any:
    return pc.if_else(pc.is_in(column, pa.array(words, pa.string())), pa.scalar(None, pa.string()), column)


def without_words(table: Table, form: Form, *, kept: str | None = None) -> Table:
    """Return a table with null for words that may mean a missing value, except in the column `kept`."""
    columns = {
        name: _without(column, form.late) if name != kept and pa.types.is_string(column.type) else column
        for name, column in table.columns.items()
    }
    return replace(table, columns=columns)


def only_rows(table: Table, kept: Any) -> Table:
    """Return the rows for which `kept`, booleans [rows], is true."""
    chosen = np.flatnonzero(kept)
    rows = chosen if table.rows is None else table.rows[chosen]
    return replace(table, columns={name: one.take(pa.array(chosen)) for name, one in table.columns.items()}, rows=rows)


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise TaskError(f"{path}: found a folder, allowed: a file")
    if not path.exists():
        raise TaskError(f"{path}: no such file{near_file(path) or '. Correct the path'}")
    return path


def read_bytes(path: Path) -> bytes:
    """Return a file's content; .gz is unzipped."""
    try:
        content = _existing(path).read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, ValueError) as error:
        raise TaskError(f"{path}: the file cannot be read ({_line(error)})") from None
    except zlib.error as error:
        raise TaskError(f"{path}: the gzip file is damaged ({_line(error)}). Replace it") from None


def _text(path: Path, form: Form) -> str:
    content = read_bytes(path)
    if content.startswith(b"PK\x03\x04"):
        raise TaskError(f"{path}: found a workbook or another zip file. Save the sheet as CSV")
    try:
        text = content.decode(form.encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"found the byte 0x{content[error.start]:02x} (byte {error.start} of the file)"
        cure = f"Probably it is {(likely := _likely_encoding(content))}: --set task_options.encoding={likely}"
        raise TaskError(f"{path}: line {line}: {problem}, which is not valid {form.encoding}. {cure}") from None
    except LookupError:
        raise TaskError(f"task_options.encoding: found {form.encoding!r}, allowed: utf-8, latin-1, ...") from None
    if "\0" in text[:1000] and form.reading != 1:
        raise TaskError(
            f"{path}: found zero bytes. Probably the encoding is utf-16: --set task_options.encoding=utf-16"
        )
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _likely_encoding(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or content.count(b"\0") > len(content) // 4:
        return "utf-16"
    return "cp1252" if any(0x80 <= one <= 0x9F for one in content) else "latin-1"


def _delimiter(path: Path, text: str, expected: Sequence[str | int], reading: int) -> str:
    """Return the delimiter that splits most of the first rows into the same number of columns, at least two.

    A delimiter that yields an expected name is preferred. Reading 2 prefers ; tab and | to a comma that fits as well.
    """
    if path.name.removesuffix(".gz").endswith(".tsv"):
        return "\t"
    sample = text[:_SAMPLE_CHARACTERS]
    lines = sample[: max(sample.rfind("\n"), sample.rfind("\r")) + 1] or sample
    best, best_share = ",", 0.0
    for delimiter in DELIMITERS if reading == 1 else ";\t|,:^~ ":
        rows = [row for row in csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter) if row]
        widths = [len(row) for row in rows]
        usual = max(set(widths), key=widths.count)
        has_name = len(rows[0]) > 1 and has_expected([cell.strip() for cell in rows[0]], expected)
        share = widths.count(usual) / len(widths) + has_name
        if usual > 1 and share > best_share and (delimiter in DELIMITERS or has_name):
            best, best_share = delimiter, share
    return best


def _parse(path: Path, text: str, form: Form) -> tuple[list[Any], Form]:
    """Return the columns as strings, including the first row, and the form with detected quoting."""
    # Files with tabs mostly have no quoting, and a lone quotation mark is text.
    first = form.delimiter != "\t" if form.quoting is None else form.quoting
    tries = [first] if form.quoting is not None else [first, not first]
    for quoting in tries:
        parsed = _parse_once(text, form, quoting=quoting)
        if parsed is not None:
            return parsed, replace(form, quoting=quoting)
    form = replace(form, quoting=first)
    raise _ragged(path, form)


def _parse_once(text: str, form: Form, *, quoting: bool) -> list[Any] | None:
    encoded = text.encode()
    width = len(next(_rows(text, replace(form, quoting=quoting)))[1])
    names = [str(index) for index in range(width)]
    try:
        read = pa_csv.read_csv(
            pa.py_buffer(encoded),
            pa_csv.ReadOptions(use_threads=False, block_size=min(len(encoded) + 1, 2**30), column_names=names),
            pa_csv.ParseOptions(
                delimiter=form.delimiter, quote_char='"' if quoting else False, newlines_in_values=quoting
            ),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, check_utf8=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    columns = [_one_chunk(read.column(name)) for name in names]
    return columns if quoting else [pc.replace_substring_regex(column, QUOTED, r"\1") for column in columns]


def _ragged(path: Path, form: Form) -> TaskError:
    width = 0
    for line, row in _records(path, form):
        width = width or len(row)
        if len(row) != width:
            allowed = f"{width}, as in the first row (delimiter {form.delimiter!r})"
            return TaskError(f"{path}: line {line}: found {len(row)} columns, allowed: {allowed}")
    problem = f"rows cannot be separated with the delimiter {form.delimiter!r}"
    return TaskError(f"{path}: {problem}. Write rows of equal length, with closed quotation marks")


def _records(path: Path, form: Form) -> Iterator[tuple[int, list[str]]]:
    return _rows(_text(path, form), form)


def _rows(text: str, form: Form) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line number, from 1, and cells. Skips blank lines."""
    csv.field_size_limit(2**31 - 1)
    lines, delimiter = io.StringIO(text, newline=""), form.delimiter or ","
    plain = form.quoting is False
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL)
    begins = 1
    for row in reader:
        if row:
            yield begins, row
        begins = reader.line_num + 1


def _has_header(columns: Sequence[Any], expected: Sequence[str]) -> bool:
    """Return whether the first row has an expected name, or only distinct words, above numbers or other words."""
    first = [column[0].as_py() for column in columns]
    if any(name in first for name in expected):
        return True
    words = [word for word in first if word is not None]
    if len(words) < max(1, len(first) - 1) or len(set(words)) < len(words):
        return False
    if pc.any(is_number(pa.array(words, pa.string()))).as_py():
        return False
    below = [column[1:] for column in columns]
    if any(pc.all(is_number(column)).as_py() and column.null_count < len(column) for column in below):
        return True
    return not any(pc.any(pc.equal(column, word)).as_py() for column, word in zip(below, first, strict=True) if word)


def _names(path: Path, columns: Sequence[Any]) -> tuple[str, ...]:
    names = [column[0].as_py() or f"column_{index}" for index, column in enumerate(columns)]
    if twice := doubled(names):
        raise TaskError(f"{path}: the column {listed(map(shown, twice))} occurs twice. Rename one of them")
    return tuple(names)


def as_text(value: object) -> str | None:
    """Return a Python value as text in a CSV file; None for a missing value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal):
        return None if math.isnan(value) else repr(float(value)).removesuffix(".0")  # repr of numpy has its type
    return None if value is None else str(value)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]


_SAMPLE = 300
_YEARS = range(1800, 2201)
_COUNTED = 3  # number of cells from which a first row 0, 1, 2 or 1, 2, 3 counts the columns

_Kind = Literal["number", "date", "word"]


def find_header(columns: Sequence[Any], expected: Sequence[str | int]) -> tuple[bool, bool]:
    """Return whether the first cells are names, and whether this is certain. `columns` are Arrow strings.

    Names are distinct. A word is a name above numbers, or if it does not occur below. A number is a name beside a word
    above numbers; in a row of counted or equally spaced whole numbers, or of years, unlike the cells below; or in a row
    of whole numbers above fractions.
    """
    first = [column[0].as_py() for column in columns]
    if has_expected(first, expected):
        return True, True
    present = [(cell, column[1:]) for cell, column in zip(first, columns, strict=True) if cell is not None]
    cells = [cell for cell, _ in present]
    if len(cells) < max(1, len(first) - 1) or len(set(cells)) < len(cells):
        return False, True
    below = [[text for text in column.drop_null().to_pylist() if not is_missing(text)] for _, column in present]
    kinds, kinds_below = [_kind(cell) for cell in cells], [_usual_kind(texts) for texts in below]
    if any(one == other == "date" for one, other in zip(kinds, kinds_below, strict=True)):
        return False, False
    numbers = [index for index, kind in enumerate(kinds) if kind == "number"]
    if any(
        one == "word" != other and other and not is_missing(cell)
        for cell, one, other in zip(cells, kinds, kinds_below, strict=True)
    ):
        return True, not numbers
    if numbers:
        of_numbers = [cells[one] for one in numbers], [below[one] for one in numbers]
        has_names = _are_names(*of_numbers, has_blank=len(cells) < len(first))
        words = [(cells[one], below[one]) for one in range(len(cells)) if one not in numbers]
        return has_names and not any(word in texts for word, texts in words), False
    return not any(cell in texts for cell, texts in zip(cells, below, strict=True)), "number" in kinds_below


def has_expected(cells: Sequence[str | None], expected: Sequence[str | int]) -> bool:
    """Return whether a cell is an expected name. Possible column numbers do not count."""
    width = len(cells)
    return any(str(one) in cells and not (isinstance(one, int) and -width <= one < width) for one in expected)


def _are_names(cells: Sequence[str], below: Sequence[Sequence[str]], *, has_blank: bool) -> bool:
    if not all(cell.isdigit() for cell in cells):
        return False
    values = [int(cell) for cell in cells]
    steps = {after - before for before, after in pairwise(values)}
    if (len(values) >= _COUNTED or has_blank) and steps <= {1} and values[0] in {0, 1}:
        return True
    if len(values) >= _COUNTED and len(set(values)) == len(values) and all(map(_are_fractions, below)):
        return True
    is_row = len(steps) == 1 and min(steps) > 0
    are_years = all(value in _YEARS for value in values) and len(set(values)) == len(values)
    return (is_row or are_years) and all(_is_unlike(value, texts) for value, texts in zip(values, below, strict=True))


def _is_unlike(value: int, below: Sequence[str]) -> bool:
    numbers = _numbers(below)
    return not numbers or _are_fractions(below) or not min(numbers) <= value <= max(numbers)


def _are_fractions(texts: Sequence[str]) -> bool:
    numbers = _numbers(texts)
    return sum(not number.is_integer() for number in numbers) > len(numbers) / 2


def _numbers(texts: Sequence[str]) -> list[float]:
    read = [parts(text) for text in texts]
    values = (value_of(one[0], mark) for one in read if one is not None for mark in ".,")
    return [value for value in values if value is not None]


def _usual_kind(texts: Sequence[str]) -> _Kind | None:
    kinds = Counter(_kind(text) for text in texts[:_SAMPLE])
    return kinds.most_common(1)[0][0] if kinds else None


def _kind(text: str) -> _Kind:
    found = parts(text)
    is_number = found is not None and any(value_of(found[0], mark) is not None for mark in ".,")
    if found is not None and is_number and not any(letter.isalpha() for letter in found[1]):
        return "number"
    dates = (milliseconds_of(text, is_day_first=is_day_first) for is_day_first in (True, False))
    return "word" if all(date is None for date in dates) else "date"
