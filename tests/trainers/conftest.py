"""What tests of ranks in processes of their own share."""

import multiprocessing
from multiprocessing import forkserver

import pytest


@pytest.fixture
def quick_starts(monkeypatch):
    """Let ranks be forks of a process that has torch loaded, which new interpreters would each load."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.rank_imports"])
    forkserver.ensure_running()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
