"""Parts that a machine may lack: tests that need them are left out there, or fail where nothing may be missing."""

import importlib.util
import os
from types import ModuleType
from typing import NoReturn

import pytest

REQUIRE_ALL = "AUTOML_TESTS_REQUIRE_ALL"
"""Environment variable under which a missing part is a failure, as in `.ci/run`."""
_DEV_CURE = "pip install --constraint constraints.txt --editable '.[dev]'"


def missing(what: str, cure: str) -> NoReturn:
    """Leave a test out, or let it fail where nothing may be missing."""
    said = f"{what} is not installed: {cure}"
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(said, pytrace=False)
    pytest.skip(said, allow_module_level=True)


def module(name: str) -> ModuleType:
    """Import a module of an optional dependency, or call `missing`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"the Python module {name}", _DEV_CURE)


def installed(*names: str) -> None:
    """Call `missing` for a module of an optional dependency that is not there; imports none, which takes seconds."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            missing(f"the Python module {name}", _DEV_CURE)
