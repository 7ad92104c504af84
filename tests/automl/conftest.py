"""What tests of whole studies share: a folder with specs, whose studies train on the warm pool."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Workplace
from tests.support.ray_pool import LentPool


@pytest.fixture
def place(tmp_path: Path, warm_pool: LentPool) -> Iterator[Workplace]:
    place = Workplace(tmp_path, warm_pool)
    yield place
    place.end_processes()
