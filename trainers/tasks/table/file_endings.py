"""Conventions about the names of table files and columns. Imports only small modules."""

import re
from collections.abc import Iterable

TEXT = (".csv", ".tsv")
PARQUET = (".parquet", ".pq")
DELIMITERS = ",;\t|"  # delimiters to look for in a file
QUOTED = r'(?s)^"(.*)"$'  # a whole cell in quotation marks; elsewhere in a file without quoting, they are text
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")


def is_index(name: str) -> bool:
    """Return whether a Parquet column is pandas' index."""
    return _PANDAS_INDEX.fullmatch(name) is not None


def doubled(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    known = list(names)
    return sorted({name for name in known if known.count(name) > 1})
