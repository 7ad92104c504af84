"""The spec of a study of an uploaded table, chosen from its data as `automl launch --task tabular` does it.

    python -m automl.service.table_spec FILE TARGET

A process of its own reads the file, which may be large.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from automl.launching.quickstart import quickstart
from automl.service.asking import answer_of, telling

LONGEST_LINE = 2**16


def table_spec(file: Path, target: str) -> tuple[dict[str, Any], list[str]]:
    """Return a spec as a YAML file has it, and notes that say what was chosen and why.

    Args:
        file: The table.
        target: Name of the column that is to be predicted.

    Raises:
        UserError: The table cannot be read, or has no such column.
    """
    answer = answer_of("automl.service.table_spec", [str(file), target])
    return answer["mapping"], answer["notes"]


def columns_of(file: Path) -> list[str]:
    """Return the names in the first line of a CSV or TSV file; empty for other files."""
    separator = {".csv": ",", ".tsv": "\t"}.get(file.suffix.lower())
    if separator is None:
        return []
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline(LONGEST_LINE).lstrip("\ufeff").rstrip("\r\n")
    return [name.strip().strip('"') for name in first.split(separator)]


def main() -> None:
    """Print the spec of a table as one line of JSON."""
    with telling():
        picked = quickstart("tabular", {"data": sys.argv[1], "target": sys.argv[2]})
    print(json.dumps({"mapping": picked.mapping, "notes": picked.notes}))


if __name__ == "__main__":
    main()
