"""How files of tables are written, for what reads training rows and for what reads new ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

PARQUET = (".parquet", ".pq")
"""Endings of names of Parquet files."""
DELIMITERS = ",;\t|"
"""What may separate cells of a file that does not say."""
QUOTED = r'(?s)^"(.*)"$'
"""A whole cell between quotation marks, which are text elsewhere in a file without quoting."""
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")


def is_index(name: str) -> bool:
    """Whether a column of Parquet is the index that pandas writes beside the data."""
    return _PANDAS_INDEX.fullmatch(name) is not None


def doubled(names: Iterable[str]) -> list[str]:
    """Return the names that several columns have."""
    known = list(names)
    return sorted({name for name in known if known.count(name) > 1})
