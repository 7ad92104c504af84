"""Reads uploaded tables in a separate process, because a file may be hostile or huge."""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from automl.service.subprocess_questions import Kind, answer_of, telling
from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import redact
from trainers.protocol import TaskError
from trainers.tasks.table.file_endings import PARQUET, is_index

_ROWS = 5  # rows of the preview
_CELL_CHARACTERS = 200
_HEAD_BYTES = 2**18  # of a text file, from which the preview is read
_PREVIEW = Kind.of("preview", seconds=30.0, too_late="the first rows took longer than 30 s to read", most=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableHead:
    """Columns and first rows of a table. `problem` says why it cannot be read, or is empty."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    read_as: str = ""
    problem: str = ""


def head_of(file: Path) -> TableHead:
    """Return the columns and first rows of a table, or its problem."""
    about = file.stat()
    try:
        return _head(str(file), about.st_mtime_ns, about.st_size)
    except (UserError, RunError) as error:
        return TableHead(problem=redact(" ".join(str(error).split())))


@lru_cache(maxsize=64)
def _head(file: str, _changed_ns: int, _bytes: int) -> TableHead:
    answer = answer_of(__name__, text=json.dumps({"head": file}), kind=_PREVIEW)
    rows = tuple(tuple(row) for row in answer["rows"])
    return TableHead(columns=tuple(answer["columns"]), rows=rows, read_as=answer["read_as"])


def table_spec(options: dict[str, str], changes: Sequence[str], folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return a spec for a table, and notes on choices. Raises UserError if the table is unreadable or lacks the target.

    `options` and `changes` are the options and `--set` values of `launch --task tabular`.
    """
    question = {"spec": options, "changes": list(changes), "folder": folder}
    answer = answer_of(__name__, text=json.dumps(question))
    return answer["mapping"], answer["notes"]


def _read_head(file: str) -> dict[str, Any]:
    path = Path(file)
    if path.name.lower().endswith(PARQUET):
        return _head_of_parquet(path)
    from trainers.tasks.table.files import Form, read_table

    with path.open("rb") as whole, tempfile.NamedTemporaryFile(suffix=path.suffix) as part:
        start = whole.read(_HEAD_BYTES)
        is_whole = len(start) < _HEAD_BYTES
        part.write(start if is_whole else start[: start.rfind(b"\n") + 1])
        part.flush()
        try:
            table = read_table(part.name, Form(reading=2))
        except TaskError as error:
            raise UserError(str(error).replace(part.name, path.name)) from None
    rows = [column.slice(0, _ROWS).to_pylist() for column in table.columns.values()]
    form = table.form or Form()
    known = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
    between = known.get(form.delimiter or "", form.delimiter)
    names = "the first row names the columns" if form.header else "the columns have no names"
    count = f"{len(table):,} rows" if is_whole else "the first rows"
    return _plain(table.names, zip(*rows, strict=True), f"{count}; {between} between cells; {names}")


def _head_of_parquet(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        file = pa_parquet.ParquetFile(path)
        batch = next(file.iter_batches(_ROWS), None)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path.name}: not a Parquet file ({' '.join(str(error).split())[:200]})") from None
    names = [name for name in file.schema_arrow.names if not is_index(name)]
    rows = [] if batch is None else [[row[name] for name in names] for row in batch.to_pylist()]
    return _plain(names, rows, f"{file.metadata.num_rows:,} rows; Parquet")


def _plain(names: Sequence[str], rows: Iterable[Sequence[object]], read_as: str) -> dict[str, Any]:
    texts = [["" if cell is None else str(cell)[:_CELL_CHARACTERS] for cell in row] for row in rows]
    return {"columns": list(names), "rows": texts, "read_as": read_as}


def _chosen_spec(options: dict[str, str], changes: Sequence[str], folder: str) -> dict[str, Any]:
    from automl.launching.quickstart import quickstart
    from trainers.contract.task_loading import load_task

    os.chdir(folder)  # relative paths mean the files that the operator's rules have judged
    picked = quickstart("tabular", options, changes)
    task: Any = load_task("tabular", picked.mapping["task_options"])
    return {"mapping": picked.mapping, "notes": [*task.data_check()["findings"], *picked.notes]}


def main() -> None:
    """Print the answer to the question on stdin as one line of JSON."""
    question = json.load(sys.stdin)
    with telling():
        head = question.get("head")
        answer = _read_head(head) if head else _chosen_spec(question["spec"], question["changes"], question["folder"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
