"""What tests of ranks in processes of their own share."""

import multiprocessing
from multiprocessing import forkserver

import pytest

from tests.support.forking import forking_context


@pytest.fixture
def quick_starts(monkeypatch):
    """Let ranks be forks of a process that has torch loaded, which new interpreters would each load."""
    context = forking_context()
    forkserver.ensure_running()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
