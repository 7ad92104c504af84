"""Small matrices are quicker in one thread: several would wait for each other, most of all beside ranks that train."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Given = ParamSpec("Given")
Result = TypeVar("Result")


@cache
def _libraries() -> ThreadpoolController:
    """The linear algebra that is loaded; looking for it takes milliseconds, so it is done once."""
    return ThreadpoolController()


def in_one_thread(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a function's linear algebra use one thread."""

    @wraps(function)
    def limited(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with _libraries().limit(limits=1):
            return function(*args, **kwargs)

    return limited
