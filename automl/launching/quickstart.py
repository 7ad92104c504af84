"""`automl launch --task tabular --data train.csv`: chooses a spec from the data, with reasons."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.spec_reading import absolute_task_options, store_overrides
from automl.launching.template import parameter_lines
from reports.phrases import limits_in_words, percent
from search_spaces.messages import found, listed, one_line, shown
from studies.spec.checks import with_first_trials
from studies.spec.metric_names import likely_direction, quality_metric
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, apply_overrides, parse_spec
from studies.spec.yaml_reader import write_yaml
from trainers.contract.task import Task, declared_metrics, first_trials_of, space_of
from trainers.contract.task_loading import built_in_tasks, load_task, options_of_new_studies
from trainers.protocol import TaskError
from trainers.tasks.shared.class_metric_names import METRIC_OF_RARE
from trainers.tasks.shared.split_task import RareClass

HOURS, USD = 0.25, 2.0
"""Budget of a study without a spec. A limit on trials would end a search of short trials early."""

_FILES: Mapping[str, str] = {"data": "train", "test_data": "test", "validation_data": "validation"}
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "tabular": {**_FILES, "target": "target"},
    "text": {**_FILES, "text": "text", "label": "label", "checkpoint": "checkpoint"},
    "vision": _FILES,
    "language_model": _FILES,
}
"""Task options by command-line option."""

_EPOCHS: Mapping[str, tuple[float, int, int]] = {
    "tabular": (2500.0, 5, 60),
    "text": (600.0, 4, 20),
    "vision": (2000.0, 5, 40),
    "language_model": (400.0, 3, 20),
}
"""Factor, least and most epochs. The factor is divided by the square root of the number of training samples.

Fewer samples need more epochs, but not in proportion, since a model soon overfits them.
"""

_CHECKPOINT_EPOCHS = 3
_COLUMN_OPTIONS = ("target", "text", "label")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quickstart:
    """A chosen spec with notes on the choices."""

    spec: StudySpec
    mapping: dict[str, Any]
    notes: tuple[str, ...]
    source: str


def quickstart(
    task: str, arguments: Mapping[str, str | None], overrides: Sequence[str] = (), store: str | None = None
) -> Quickstart:
    """Choose a spec for a built-in task. Raises SpecError if an option or a file is wrong."""
    source = f"launch --task {task}"
    if task not in built_in_tasks():
        allowed = f"{listed(built_in_tasks())}. For your own task write a spec with `automl init module:Class`"
        raise SpecError("--task", (), found(task, allowed))
    given = {name: value for name, value in arguments.items() if value is not None}
    given_options = _task_options(task, given)
    mapping: dict[str, Any] = {"task": task, "task_options": {**options_of_new_studies(task), **given_options}}
    changes = store_overrides(overrides, store)
    options = apply_overrides(mapping, overrides)["task_options"]
    options = options if isinstance(options, dict) else {}
    mapping["task_options"] = absolute_task_options(task, options, Path.cwd(), source=source)
    loaded = _load(task, mapping["task_options"], source)
    samples = int(getattr(loaded, "training_samples", 0))  # 0 if only code with torch can count them
    mapping = {"study": _study_name(given.get("data"), task), **mapping, **_picked(loaded, task, samples, mapping)}
    changed = apply_overrides(mapping, changes)
    changed["task_options"] = mapping["task_options"]
    spec = with_first_trials(parse_spec(changed, source), first_trials_of(loaded), source)
    if spec.search.first_trials:
        first = [dict(one) for one in spec.search.first_trials]
        search = changed.get("search")
        changed["search"] = {**(search if isinstance(search, dict) else {}), "first_trials": first}
    return Quickstart(spec=spec, mapping=changed, notes=_notes(spec, loaded, samples, mapping), source=source)


def write_spec(path: Path, picked: Quickstart) -> None:
    """Write the spec to a new file. Raises SpecError if it exists or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(as_yaml(picked))
    except FileExistsError:
        raise SpecError("--save-spec", (), f"{str(path)!r} exists already. Name a new file") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError("--save-spec", (), f"{str(path)!r} cannot be written ({reason})") from None


def as_yaml(picked: Quickstart) -> str:
    """Return the spec as YAML with comments."""
    comments = {
        "task_options": "arguments of the task's constructor; docs/tasks.md lists them",
        "objectives": "always measured: cost_usd, wall_seconds, model_parameters, latency_ms, train_loss, val_loss",
        "space": "parameters to search; learning_rate is for a batch of reference_batch (64) samples",
        "training": "the same for all trials",
        "budget": "the search ends at the first limit reached",
    }
    if ":" in picked.mapping["task"]:  # a training function measures fewer metrics
        del comments["objectives"]
    lines = [f"# {one_line(note)}" for note in picked.notes]  # so that a line break in the data cannot write a key
    for key, value in picked.mapping.items():
        lines += ["", f"# {comments[key]}"] if key in comments else []
        lines.append(_section(key, value))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _section(key: str, value: Any) -> str:
    if key == "space" and isinstance(value, dict):
        return "\n".join(["space:", *parameter_lines(value)])
    return write_yaml({key: value}).rstrip()


def _task_options(task: str, given: Mapping[str, str]) -> dict[str, Any]:
    taken = _OPTIONS.get(task, {})
    for name in given:
        if name not in taken:
            flags = listed(_flag(one) for one in taken) or "none"
            problem = f"the task {task} does not take {_flag(name)}. Its options: {flags}"
            raise SpecError(f"launch --task {task}", (), problem)
    if taken and "data" not in given:
        what = {"vision": "a folder of images", "language_model": "a text file, or a folder of text files"}.get(
            task, "a CSV, TSV or Parquet file"
        )
        raise SpecError(f"launch --task {task}", (), f"--data is missing. Name {what}")
    return {taken[name]: _column(name, value) for name, value in given.items()}


def _column(name: str, value: str) -> str | int:
    return int(value) if name in _COLUMN_OPTIONS and re.fullmatch(r"0|-?[1-9][0-9]{0,5}", value) else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _load(task: str, options: dict[str, Any], source: str) -> Task:
    try:
        return load_task(task, options)
    except TaskError as error:
        raise SpecError(source, (), " ".join(str(error).split())) from None


def _picked(task: Task, name: str, samples: int, mapping: Mapping[str, Any]) -> dict[str, Any]:
    known = declared_metrics(task) or ("val_error",)
    is_rare = getattr(task, "rare_class", None) is not None and METRIC_OF_RARE in known
    metrics = (METRIC_OF_RARE if is_rare else quality_metric(known), "cost_usd")
    space = space_of(task)
    return {
        "objectives": [{"metric": one, "direction": likely_direction(one)} for one in metrics],
        **({} if space is None else {"space": space.to_dict()}),
        "training": {"epochs": _epochs(name, samples, mapping)},
        "budget": {"hours": HOURS, "usd": USD, "trials": None},
    }


def _epochs(name: str, samples: int, mapping: Mapping[str, Any]) -> int:
    if mapping["task_options"].get("checkpoint"):
        return _CHECKPOINT_EPOCHS
    if name not in _EPOCHS or not samples:
        return 20
    factor, low, high = _EPOCHS[name]
    return min(max(low, round(factor / math.sqrt(samples))), high)


def _study_name(data: str | None, task: str) -> str:
    """Derive a study's name from the data file's name. Names like train.csv get the folder's name in front."""
    if data is None:
        return task
    path = Path(data).absolute()
    stem = path.name.partition(".")[0] or path.name
    name = f"{path.parent.name}-{stem}" if stem.lower() in {"train", "training", "data", "dataset"} else stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:80] or task


def _notes(spec: StudySpec, task: Task, samples: int, picked: Mapping[str, Any]) -> tuple[str, ...]:
    describe = getattr(task, "describe", None)
    epochs, why = spec.training.epochs, "as set"
    if epochs == picked["training"]["epochs"]:
        why = f"for {samples} training samples" if samples else "by default"
    parameters = listed(spec.space.names()) if spec.space is not None else "none"
    return (
        *(
            (f"study {spec.study}: named after the data; --set study=NAME changes it",)
            * (spec.study == picked["study"])
        ),
        *(describe() if describe is not None else ()),
        objectives_note(spec),
        *_rare_class_note(spec, getattr(task, "rare_class", None)),
        f"space: {parameters}",
        f"training: {epochs} epochs, {why}",
        budget_note(spec),
    )


def _rare_class_note(spec: StudySpec, rare: RareClass | None) -> list[str]:
    """Explain the objective for a rare class; empty for other objectives."""
    if rare is None or spec.objectives[0].metric != METRIC_OF_RARE:
        return []
    said = f"rare class: {percent(rare.share)} of the training rows are {shown(rare.label)}"
    why = f"always answering {shown(rare.usual)} is wrong in {percent(rare.usual_error)} of rows"
    cure = "--set 'objectives=[val_error, cost_usd]' takes the error"
    return [f"{said}; {why}, so val_error hardly tells models apart, and {METRIC_OF_RARE} does ({cure})"]


def objectives_note(spec: StudySpec) -> str:
    """Return the note about the objectives."""
    objectives = " and ".join(f"{one.metric} ({one.direction})" for one in spec.objectives)
    return f"objectives: {objectives}; the archive keeps every model that no other model beats in all objectives"


def budget_note(spec: StudySpec) -> str:
    """Return the note about the budget."""
    budget = spec.budget
    return f"budget: {limits_in_words(usd_limit=budget.usd, hours=budget.hours, trials=budget.trials)}"


def shown_notes(picked: Quickstart) -> str:
    """Return the notes as a list for the terminal."""
    return "\n".join(f"- {note}" for note in picked.notes)
