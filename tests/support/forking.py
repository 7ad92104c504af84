"""Processes of tests as forks of one that has torch loaded, which new interpreters would each load for seconds."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def forking_context() -> ForkServerContext:
    """What starts them; a process has one server, which imports at its start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.rank_imports"])
    return context
