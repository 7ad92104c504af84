"""The service that these tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import TestedService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[TestedService]:
    """A service over an empty store."""
    one = TestedService(tmp_path)
    yield one
    one.close()
