"""Names of the studies of a store, for the completion of a shell: nothing is created, and nothing raises."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from automl.stored.opening import store_url
from search_spaces.errors import UserError
from studies.storage.engine import absolute_url, is_current, parse_url
from studies.storage.store import Store


def names_of(given: str | None) -> list[str]:
    """Return the names of a store's studies, newest first; none of a store that cannot be read as it is.

    Args:
        given: URL of the store, as `open_store` takes it.
    """
    try:
        text = absolute_url(store_url(given), Path.cwd())
        url = parse_url(text)
        is_missing = url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists()
        if is_missing or not is_current(text):
            return []
        with closing(Store(text)) as store:
            return list(reversed(store.study_names()))
    except (UserError, OSError, ModuleNotFoundError, sa.exc.SQLAlchemyError):
        return []
