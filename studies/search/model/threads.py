"""Linear algebra in one thread: for small matrices, more threads would wait for each other and slow training ranks."""

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Given = ParamSpec("Given")
Result = TypeVar("Result")


@cache
def _libraries() -> ThreadpoolController:
    """Return the loaded linear algebra libraries; cached, since looking them up takes milliseconds."""
    return ThreadpoolController()


def in_one_thread(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function so that its linear algebra uses one thread."""

    @wraps(function)
    def limited(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with _libraries().limit(limits=1):
            return function(*args, **kwargs)

    return limited
