"""Processes of tests as forks of one that has torch loaded, which new interpreters would each load for seconds."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def forking_context() -> ForkServerContext:
    """What starts them. One worker has the tests that need it, the group `ranks`: its server loads for seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.rank_imports"])
    return context
