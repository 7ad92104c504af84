"""Stored form of a study's spec."""

from collections.abc import Mapping
from typing import Any

from studies.records.records import SIMULATED_TASK
from studies.redact import redact
from studies.spec.study_spec import StudySpec, parse_spec, spec_to_mapping
from studies.storage.schema.engine import StoreError


def stored_form(spec: StudySpec) -> dict[str, Any]:
    """Return a spec's stored form: without passwords, and without the store's own URL, which may change."""
    mapping = spec_to_mapping(spec)
    mapping.pop("store", None)
    mapping["search"]["from_studies"] = [redact(name) for name in spec.search.from_studies]
    return mapping


def from_store(form: Mapping[str, Any], name: str) -> StudySpec:
    """Return the spec of a study from its stored form. StoreError if it was simulated, and so cannot continue."""
    check_launched(form, name)
    return parse_spec(form, name)


def check_launched(form: Mapping[str, Any], name: str) -> None:
    """Raise `StoreError` if a study was simulated: it has no models, and cannot continue."""
    if form.get("task") == SIMULATED_TASK:
        raise StoreError(f"{name!r} was simulated, so it cannot run. Name a study that was launched")
