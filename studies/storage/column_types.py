"""Column types that take text from outside as it comes: exceptions, facts, names; the store's border for text."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from search_spaces.outside_text import storable, storable_deep


class SafeText(sa.TypeDecorator[str]):
    """Text without what a database refuses; see `search_spaces.outside_text`."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Return the text that is stored, or looked for."""
        return None if value is None else storable(value)


class SafeString(sa.TypeDecorator[str]):
    """Text of limited length; see `SafeText`."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Return the text that is stored, or looked for."""
        return None if value is None else storable(value)


class SafeJson(sa.TypeDecorator[Any]):
    """Plain data whose texts hold nothing that a database refuses; see `SafeText`."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        """Return the data that is stored."""
        return storable_deep(value)
