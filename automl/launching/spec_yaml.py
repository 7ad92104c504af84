"""Parts of a spec as YAML that people read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from studies.spec.errors import SpecError
from studies.spec.yaml_reader import read_yaml, write_yaml


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    return write_yaml(value, on_one_line=True).strip()


def parameter_lines(space: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a space as indented lines, one for each.

    Args:
        space: YAML form of a space.
    """
    return [f"  {name}: {flow(parameter)}" for name, parameter in space.items()]


def word(text: str) -> str:
    """Return a text without quotes if YAML reads it as the same text, else in quotes."""
    try:
        return text if read_yaml(text, source="") == text else json.dumps(text)
    except SpecError:
        return json.dumps(text)
