"""What tests of ranks share, in processes of their own or in that of the tests."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing import forkserver

import pytest

from tests.support.forking import forking_context
from trainers.ranks.process_state import ProcessState


@pytest.fixture
def quick_starts(monkeypatch):
    """Let ranks be forks of a process that has torch loaded, which new interpreters would each load."""
    context = forking_context()
    forkserver.ensure_running()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


@pytest.fixture
def process_as_before() -> Iterator[None]:
    """Undo what the test leaves in its process: torch's settings, environment and working folder, among others."""
    state = ProcessState()
    yield
    state.restore()
