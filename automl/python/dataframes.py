"""Tables of a study as pandas DataFrames. Pandas lives here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.user_errors import UserError
from search_spaces.wording import found, install_command, listed, nearest
from studies.records.plain_rows import TABLES, flattened
from studies.records.records import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

WHOLE_NUMBERS = frozenset({"trial", "attempt"})
"""Columns of whole numbers that may be missing."""


class DataFrameError(UserError, ValueError):
    """There is no such table, or pandas is not installed."""


def dataframe(record: StudyRecord, what: str) -> pd.DataFrame:
    """Return a table of a study, inactive parameters as missing values; DataFrameError without table or pandas."""
    if what not in TABLES:
        raise DataFrameError(f"dataframe: {found(what, listed(TABLES), nearest(what, TABLES))}")
    try:
        import pandas as pd
    except ImportError:
        raise DataFrameError(f"dataframe needs the package pandas: {install_command('pandas')}") from None
    table = TABLES[what]
    columns, lines = flattened(table.rows(record), table.columns)
    values = {name: [line.get(name) for line in lines] for name in columns}
    return pd.DataFrame({name: pd.Series(column, dtype=_type_of(name, column)) for name, column in values.items()})


def _type_of(name: str, column: list[object]) -> str | None:
    """Column type where pandas would turn whole numbers into floats, or booleans into objects."""
    kinds = {type(value) for value in column if value is not None}
    if name in WHOLE_NUMBERS or (kinds == {int} and None in column):
        return "Int64"
    return "boolean" if kinds == {bool} and None in column else None
