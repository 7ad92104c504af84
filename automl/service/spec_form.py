"""The form of a study, made of the spec's schema: its fields with defaults and what is allowed, and back to a spec."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from studies.spec.study_spec import StudySpec
from studies.spec.yaml_reader import read_yaml, write_yaml
from trainers.task_loading import built_in_tasks

SHOWN = ("study", "task", "task_options", "objectives", "training.epochs", "budget.usd", "budget.hours",
         "budget.trials", "resources.slots")  # fmt: skip
"""Keys of the spec that the form always shows."""
FURTHER = ("space", "constraints", "search.sampler", "search.pruner", "search.seed", "search.from_studies",
           "budget.usd_per_trial", "resources.device", "training.schedule", "training.precision")  # fmt: skip
"""Keys that it shows when somebody asks for more."""
MOST_FILES = 200
_TEXT_KEYS = frozenset({"study", "task"})
_WORDS = {
    "study": "name of the study", "task": "task", "task_options": "options of the task", "objectives": "objectives",
    "training.epochs": "epochs of a training", "budget.usd": "budget in dollars", "budget.hours": "budget in hours",
    "budget.trials": "largest number of trials", "resources.slots": "slots",
    "space": "space to search", "constraints": "constraints", "search.sampler": "sampler", "search.pruner": "pruner",
    "search.seed": "seed", "search.from_studies": "studies to learn from",
    "budget.usd_per_trial": "largest cost of a trial in dollars", "resources.device": "device",
    "training.schedule": "schedule of the learning rate", "training.precision": "precision",
}  # fmt: skip
_EXAMPLES = {
    "task_options": "YAML, such as train: flowers.csv",
    "objectives": "YAML, such as [{metric: val_error}, {metric: cost_usd}]",
    "constraints": "YAML, such as [{metric: latency_ms, max: 5}]",
    "space": "YAML, such as learning_rate: {type: float, low: 0.001, high: 1, log: true}; the task's own if empty",
}
"""Hints of fields that take YAML, where an example says more than the schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field of the form.

    Attributes:
        key: Key of the spec, with dots between its parts.
        label: What it is, for people.
        hint: What is allowed, as error messages say it.
        default: What the spec has if the field is left empty, as text.
        is_long: Whether it takes lines of YAML.
        is_required: Whether it has to be filled in.
    """

    key: str
    label: str
    hint: str
    default: str
    is_long: bool
    is_required: bool


@cache
def fields(keys: tuple[str, ...]) -> tuple[Field, ...]:
    """Return the fields of keys of the spec, in their order."""
    schema = StudySpec.model_json_schema()
    return tuple(_field(schema, key) for key in keys)


def _field(schema: Mapping[str, Any], key: str) -> Field:
    section, _, name = key.rpartition(".")
    of_section: Mapping[str, Any] = schema
    if section:
        of_section = schema["$defs"][schema["properties"][section]["$ref"].rpartition("/")[2]]
    known = of_section["properties"][name]
    default = known.get("default")
    is_long = known.get("type") in {"array", "object"} or name == "space"
    return Field(
        key=key,
        label=_WORDS[key],
        hint=_EXAMPLES.get(key, known.get("description", "")),
        default="" if default in (None, "", [], {}) else write_yaml(default).removesuffix("...\n"),
        is_long=is_long,
        is_required=key in of_section.get("required", ()) or key == "study",
    )


def spec_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a form that was filled in; what was left empty is left out."""
    spec: dict[str, Any] = {}
    for key in (*SHOWN, *FURTHER):
        text = given.get(key, "")
        if not text:
            continue
        section, _, name = key.rpartition(".")
        place = spec.setdefault(section, {}) if section else spec
        place[name] = text if key in _TEXT_KEYS else read_yaml(text, source=f"form: {key}")
    return spec


def offered_tasks(code_folders: Mapping[str, Path]) -> list[str]:
    """Return names of tasks: built-in ones, and classes and functions of the operator's code folders.

    Files are read and not run: a name may be none of a task, and the check says so.
    """
    own = (name for folder in code_folders.values() for name in _defined_in(folder))
    return [*built_in_tasks(), *dict.fromkeys(own)]


def _defined_in(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py"))[:MOST_FILES]:
        try:
            body = ast.parse(path.read_text(encoding="utf-8")).body
        except (OSError, SyntaxError, ValueError):
            continue
        for one in body:
            if isinstance(one, ast.ClassDef | ast.FunctionDef) and not one.name.startswith("_"):
                yield f"{path.stem}:{one.name}"
