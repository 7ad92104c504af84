"""Questions about an uploaded table, answered in a separate process: the file may be hostile, or expand."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from automl.service.subprocess_questions import answer_of, telling
from search_spaces.user_errors import RunError, UserError
from studies.redact import redact

_ROWS = 5  # rows of the preview


@dataclass(frozen=True, kw_only=True, slots=True)
class TableHead:
    """The columns of a table and its first rows, as a study would read them. `problem` is why it cannot be read."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    read_as: str = ""
    problem: str = ""


def head_of(file: Path) -> TableHead:
    """Return the head of a table. A file that cannot be read gives its problem, and no columns."""
    about = file.stat()
    try:
        return _head(str(file), about.st_mtime_ns, about.st_size)
    except (UserError, RunError) as error:
        return TableHead(problem=redact(" ".join(str(error).split())))


@lru_cache(maxsize=64)
def _head(file: str, _changed_ns: int, _bytes: int) -> TableHead:
    answer = answer_of(__name__, [json.dumps({"head": file})])
    rows = tuple(tuple(row) for row in answer["rows"])
    return TableHead(columns=tuple(answer["columns"]), rows=rows, read_as=answer["read_as"])


def table_spec(options: dict[str, str], changes: Sequence[str], folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return a spec for a table, and notes on the choices. UserError if it is unreadable, or lacks the column.

    `options` and `changes` are the options and `--set` values of `launch --task tabular` in this folder.
    """
    answer = answer_of(__name__, [json.dumps({"spec": options, "changes": list(changes), "folder": folder})])
    return answer["mapping"], answer["notes"]


def _read_head(file: str) -> dict[str, Any]:
    from trainers.tasks.table.files import Form, as_text, read_table

    table = read_table(file, Form(reading=2))
    columns = [column.slice(0, _ROWS).to_pylist() for column in table.columns.values()]
    rows = [["" if cell is None else as_text(cell) for cell in row] for row in zip(*columns, strict=True)]
    form, read_as = table.form, "Parquet"
    if form is not None:
        known = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
        between = known.get(form.delimiter or "", form.delimiter)
        names = "the first row names the columns" if form.header else "the columns have no names"
        read_as = f"{between} between cells; {names}"
    return {"columns": list(table.names), "rows": rows, "read_as": f"{len(table):,} rows; {read_as}"}


def _chosen_spec(options: dict[str, str], changes: Sequence[str], folder: str) -> dict[str, Any]:
    from automl.launching.quickstart import quickstart
    from trainers.contract.task_loading import load_task

    os.chdir(folder)  # relative paths mean the files that the operator's rules have judged
    picked = quickstart("tabular", options, changes)
    task: Any = load_task("tabular", picked.mapping["task_options"])
    return {"mapping": picked.mapping, "notes": [*task.data_check()["findings"], *picked.notes]}


def main() -> None:
    """Print the answer to a question as one line of JSON."""
    question = json.loads(sys.argv[1])
    with telling():
        head = question.get("head")
        answer = _read_head(head) if head else _chosen_spec(question["spec"], question["changes"], question["folder"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
