"""Stores for the tests of studies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.storage.study_store import Store
from tests.support.databases import empty_database


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store on SQLite; where a test uses `either_url`, one on a database of each kind."""
    if "either_url" in request.fixturenames:
        url = str(request.getfixturevalue("either_url"))
    else:
        (tmp_path / "store.db").write_bytes(empty_database())
        url = f"sqlite:///{tmp_path}/store.db"
    one = Store(url)
    yield one
    one.close()
