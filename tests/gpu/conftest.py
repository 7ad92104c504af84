"""What holds for each test on a GPU: it leaves the process as it was, and does not begin too late."""

import gc
import os
import time
from collections.abc import Iterator

import pytest

from trainers.ranks.process_state import ProcessState

SECONDS = float(os.environ.get("AUTOML_TEST_GPU_SECONDS", "420"))
"""Time in which tests may begin; `make test-gpu` ends what still runs a minute later."""
_BEGAN = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that comes too late: a device that is paid by the second must not wait for a hang after another."""
    if time.monotonic() - _BEGAN > SECONDS:
        pytest.fail(f"{item.name} has not begun within {SECONDS:g} s of the session", pytrace=False)


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    state = ProcessState()
    yield
    state.restore()
    gc.collect()
