"""Stored form of a study's spec."""

import shlex
from collections.abc import Mapping
from typing import Any

from studies.records.records import NOT_TRAINED_HERE
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
    """Return the spec of a study from its stored form. StoreError if it was not trained here."""
    check_launched(form, name)
    return parse_spec(form, name)


def check_launched(form: Mapping[str, Any], name: str) -> None:
    """Raise `StoreError` if a study was simulated or imported: it has no models, and cannot continue."""
    if how := NOT_TRAINED_HERE.get(form.get("task")):
        learn = f"`automl launch SPEC --from-study {shlex.quote(name)}`"
        raise StoreError(f"{name!r} {how}, so it cannot run. Name a study that was launched, or learn from it: {learn}")
