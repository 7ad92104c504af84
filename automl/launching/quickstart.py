"""`automl launch --task tabular --data train.csv --target income`: a spec that nobody had to write.

Everything picked is said, with the reason, and can be set with --set or kept with --save-spec.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from search_spaces.wording import found, listed
from studies.spec.errors import SpecError
from studies.spec.study_spec import StudySpec, apply_overrides, parse_spec
from trainers.protocol import TaskError
from trainers.task import Task, built_in_tasks, declared_metrics, load_task, path_options, space_of

HOURS, TRIALS, USD = 0.25, 100, 2.0
"""Budget of a study that was launched without one."""

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "tabular": {"data": "train", "test_data": "test", "validation_data": "validation", "target": "target"},
    "text": {
        "data": "train",
        "test_data": "test",
        "validation_data": "validation",
        "text": "text",
        "label": "label",
        "checkpoint": "checkpoint",
    },
    "vision": {"data": "train", "test_data": "test", "validation_data": "validation"},
}
"""Which option of the task each argument of the command line is."""

_EPOCHS: Mapping[str, tuple[float, int, int]] = {
    "tabular": (2500.0, 5, 60),
    "text": (600.0, 4, 20),
    "vision": (2000.0, 5, 40),
}
"""Epochs are a number divided by the root of the training rows, with their bounds: little data is seen more often,
but not in proportion, since a model soon knows it by heart."""

_CHECKPOINT_EPOCHS = 3
_COLUMN_OPTIONS = ("target", "text", "label")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quickstart:
    """A spec that was picked.

    Attributes:
        spec: Parsed, with overrides.
        mapping: The same as it stands in a file.
        notes: What was picked and why, one line each.
        source: What messages call the spec.
    """

    spec: StudySpec
    mapping: dict[str, Any]
    notes: tuple[str, ...]
    source: str


def quickstart(
    task: str, arguments: Mapping[str, str | None], overrides: Sequence[str] = (), store: str | None = None
) -> Quickstart:
    """Pick a spec for a built-in task and a data set.

    Args:
        task: A built-in task.
        arguments: `data`, `target` and so on as typed; None where nothing was.
        overrides: `path=value` each, on top of what is picked.
        store: The database's URL, above all others.

    Raises:
        SpecError: An argument does not belong to the task, or a file is wrong; one line.
    """
    source = f"launch --task {task}"
    if task not in built_in_tasks():
        allowed = f"{listed(built_in_tasks())}; a task of your own needs a spec, see `automl init module:Class`"
        raise SpecError("--task", (), found(task, allowed))
    given = {name: value for name, value in arguments.items() if value is not None}
    mapping: dict[str, Any] = {"task": task, "task_options": _task_options(task, given)}
    stores = [f"store={json.dumps(value)}" for value in (os.environ.get("AUTOML_STORE"),) if value]
    changes = [*stores, *overrides, *([f"store={json.dumps(store)}"] if store else [])]
    options = apply_overrides(mapping, overrides)["task_options"]
    mapping["task_options"] = absolute_paths(task, options if isinstance(options, dict) else {}, Path.cwd())
    loaded = _load(task, mapping["task_options"], source)
    samples = _samples(loaded)
    mapping = {"study": _study_name(given.get("data"), task), **mapping, **_picked(loaded, task, samples, mapping)}
    changed = apply_overrides(mapping, changes)
    changed["task_options"] = mapping["task_options"]
    spec = parse_spec(changed, source)
    return Quickstart(spec=spec, mapping=changed, notes=_notes(spec, loaded, samples, mapping), source=source)


def absolute_paths(task: str, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of a built-in task with its paths absolute: ranks, and `resume`, start in other folders.

    Args:
        task: Its name; the options of one's own task are left alone.
        options: As in a spec.
        folder: Where relative paths start.
    """
    always, if_there = path_options(task)
    changed = dict(options)
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            continue
        path = Path(os.path.abspath(folder / Path(value).expanduser()))  # noqa: PTH100 - resolve() follows links
        if name in always or (name in if_there and path.exists()):
            changed[name] = str(path)
    return changed


def write_spec(path: Path, picked: Quickstart) -> None:
    """Write what was picked as a commented spec.

    Raises:
        SpecError: The file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(as_yaml(picked))
    except FileExistsError:
        raise SpecError("--save-spec", (), f"found {str(path)!r}, which exists, allowed: a new file") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError("--save-spec", (), f"found {str(path)!r} ({reason}), allowed: a file to write") from None


def as_yaml(picked: Quickstart) -> str:
    """Return the spec as YAML with a line on each section."""
    comments = {
        "task_options": "arguments of the task's constructor; docs/tasks.md lists them",
        "objectives": "always measured: cost_usd, wall_seconds, model_parameters, latency_ms, train_loss, val_loss",
        "space": "what may vary; the learning rate is the one at reference_batch (64) samples a step",
        "training": "the same for all trials",
        "budget": "whichever comes first",
    }
    lines = [f"# {note}" for note in picked.notes]
    for key, value in picked.mapping.items():
        lines += ["", f"# {comments[key]}"] if key in comments else []
        lines.append(_section(key, value))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _section(key: str, value: Any) -> str:
    if key == "space" and isinstance(value, dict):
        inner = "\n".join(f"  {name}: {_flow(parameter)}" for name, parameter in value.items())
        return f"space:\n{inner}"
    return yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=1000).rstrip()


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1000)
    return text.strip()


def _task_options(task: str, given: Mapping[str, str]) -> dict[str, Any]:
    taken = _OPTIONS.get(task, {})
    for name in given:
        if name not in taken:
            flags = listed(_flag(one) for one in taken) or "none"
            problem = f"found {_flag(name)}, which the task {task} does not take, allowed: {flags}"
            raise SpecError(f"launch --task {task}", (), problem)
    if taken and "data" not in given:
        what = "a folder of images" if task == "vision" else "a CSV, TSV or Parquet file"
        raise SpecError(f"launch --task {task}", (), f"found no --data, allowed: {what}")
    return {taken[name]: _column(name, value) for name, value in given.items()}


def _column(name: str, value: str) -> str | int:
    """A column may be typed as its number."""
    return int(value) if name in _COLUMN_OPTIONS and re.fullmatch(r"-?[0-9]{1,6}", value) else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _load(task: str, options: dict[str, Any], source: str) -> Task:
    try:
        return load_task(task, options)
    except TaskError as error:
        raise SpecError(source, (), " ".join(str(error).split())) from None


def _samples(task: Task) -> int:
    """Training samples, for tasks that say so without torch; 0 for others."""
    return int(getattr(task, "training_samples", 0))


def _picked(task: Task, name: str, samples: int, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Objectives, space, epochs and budget."""
    metrics = declared_metrics(task) or ("val_error",)
    quality = next((one for one in ("val_error", "val_mse") if one in metrics), metrics[0])
    space = space_of(task)
    return {
        "objectives": [{"metric": one, "direction": "minimize"} for one in (quality, "cost_usd")],
        **({} if space is None else {"space": space.to_dict()}),
        "training": {"epochs": _epochs(name, samples, mapping)},
        "budget": {"hours": HOURS, "usd": USD, "trials": TRIALS},
    }


def _epochs(name: str, samples: int, mapping: Mapping[str, Any]) -> int:
    if mapping["task_options"].get("checkpoint"):
        return _CHECKPOINT_EPOCHS
    if name not in _EPOCHS or not samples:
        return 20
    factor, low, high = _EPOCHS[name]
    return min(max(low, round(factor / math.sqrt(samples))), high)


def _study_name(data: str | None, task: str) -> str:
    """A name from the data's: of the file, or of its folder too where the file's says nothing."""
    if data is None:
        return task
    path = Path(data).absolute()
    stem = path.name.partition(".")[0] or path.name
    name = f"{path.parent.name}-{stem}" if stem.lower() in {"train", "training", "data", "dataset"} else stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:80] or task


def _notes(spec: StudySpec, task: Task, samples: int, picked: Mapping[str, Any]) -> tuple[str, ...]:
    describe = getattr(task, "describe", None)
    objectives = " and ".join(f"{one.metric} ({one.direction})" for one in spec.objectives)
    budget = spec.budget
    limits = [
        f"{budget.hours * 60:g} minutes" if budget.hours is not None else "",
        f"${budget.usd:g}" if budget.usd is not None else "",
        f"{budget.trials} trials" if budget.trials is not None else "",
    ]
    epochs, why = spec.training.epochs, "as set"
    if epochs == picked["training"]["epochs"]:
        why = f"for {samples} training samples" if samples else "by default"
    parameters = listed(spec.space.names()) if spec.space is not None else "none"
    return (
        f"study {spec.study}: a name from the data's; --set study=NAME gives another",
        *(describe() if describe is not None else ()),
        f"objectives: {objectives}; the archive keeps every model that no other one beats in all of them",
        f"space: {parameters}",
        f"training: {epochs} epochs, {why}",
        f"budget: {' or '.join(limit for limit in limits if limit)}, whichever comes first",
    )


def shown_notes(picked: Quickstart) -> str:
    """Return the notes as a paragraph for the terminal."""
    return "\n".join(f"- {note}" for note in picked.notes)
