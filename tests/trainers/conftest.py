"""What the trainer's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.trainer_pool import Pool


@pytest.fixture(scope="session")
def ranks() -> Iterator[Pool]:
    """Four rank processes, which tests lend one after the other."""
    pool = Pool()
    yield pool
    pool.close()
