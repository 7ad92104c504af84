"""From a file or a mapping, with what the command line and the environment set, to a parsed spec."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.spec.study_spec import StudySpec, apply_overrides, load_spec, parse_spec, spec_to_mapping
from studies.spec.typed import as_plain


def read_spec(path: str | Path, overrides: Sequence[str] = (), store: str | None = None) -> StudySpec:
    """Read a spec from its file.

    Args:
        path: YAML file.
        overrides: `path=value` each, as `--set` takes them.
        store: URL of the store, as `--store` takes it.

    Raises:
        SpecError: The file cannot be read, or the spec is wrong.
    """
    return load_spec(path, store_overrides(overrides, store))


def store_overrides(overrides: Sequence[str], store: str | None) -> list[str]:
    """Return overrides in the order in which they hold: `--store` beats `--set`, which beats AUTOML_STORE."""
    environment = os.environ.get("AUTOML_STORE")
    first = [f"store={json.dumps(environment)}"] if environment else []
    last = [f"store={json.dumps(store)}"] if store else []
    return [*first, *overrides, *last]


def parse_with_overrides(
    spec: StudySpec | Mapping[str, Any], overrides: Sequence[str] = (), source: str = "spec"
) -> StudySpec:
    """Parse a spec that Python code gives.

    Args:
        spec: Parsed spec, or a mapping of the form that a file has, typed objects included.
        overrides: `path=value` each, as `--set` takes them.
        source: Name of the spec in messages.

    Raises:
        SpecError: The spec or an override is wrong.
    """
    if not overrides:
        return spec if isinstance(spec, StudySpec) else parse_spec(spec, source)
    mapping = spec_to_mapping(spec) if isinstance(spec, StudySpec) else as_plain(spec)
    return parse_spec(apply_overrides(mapping, overrides), source)
