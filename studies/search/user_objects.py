"""Users' own samplers and pruners, which a spec names as `module:Object`."""

import importlib
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from search_spaces.messages import UserError


class SearchError(UserError):
    """A spec's sampler or pruner cannot be used; `path` is its place in the section `search`."""

    def __init__(self, problem: str, path: tuple[str, ...]) -> None:
        super().__init__(problem, path)
        self.problem = " ".join(problem.split())
        self.path = path

    def __str__(self) -> str:
        return f"{'.'.join(('search', *self.path))}: {self.problem}"


def load_object(name: str, path: tuple[str, ...]) -> Any:
    """Import `module:Object`; Object may contain dots. Raises `SearchError` at `path` on failure."""
    module_name, _, object_name = name.partition(":")
    try:
        return reduce(getattr, object_name.split("."), importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of the user's module is for the user to fix
        raise SearchError(f"{name!r} cannot be used ({type(error).__name__}: {error})", path) from None


def make_importable(folder: Path) -> None:
    """Allow imports of the user's modules in the spec's folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
