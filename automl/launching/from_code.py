"""`automl launch train.py:train`: chooses a spec for the user's training function or task."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.launching.prepared_study import MEASURED_OF_FUNCTIONS, Prepared, TaskFacts, facts_of, prepare, quality_of
from automl.launching.quickstart import HOURS, USD, Quickstart, budget_note, objectives_note
from automl.launching.spec_reading import store_overrides
from search_spaces.messages import found, listed, near_file
from studies.spec.metric_names import direction_is_guess, likely_direction
from studies.spec.sections import ENTRY_POINT
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec, apply_overrides, parse_spec, split_override
from trainers.protocol import CUMULATIVE_METRICS

EPOCHS = 20  # epochs of a training of code without a spec

_FILE = re.compile(r"(?P<file>.*\.py):(?P<name>.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_SET_SPACE = "--set 'space={learning_rate: {type: float, low: 1.0e-4, high: 0.1, log: true}}'"
_SET_OBJECTIVES = "--set 'objectives=[{metric: NAME, direction: minimize}]'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """A user's training function or task. `task` is its name in a spec, `module:NAME`."""

    task: str
    folder: Path
    given: str

    @property
    def source(self) -> str:
        """Name of this code in messages, instead of a spec's path."""
        return f"launch {self.given}"


def code_of(given: Path) -> Code | None:
    """Find the code `FILE.py:NAME` or `module:NAME`; None for a spec file. Raises SpecError if it is missing."""
    text = str(given)
    match = _FILE.fullmatch(text)
    if match is not None:
        return _in_file(Path(match["file"]), match["name"], text)
    if given.suffix == ".py":
        raise SpecError("launch", (), found(text, f"{text}:NAME, where NAME is a training function or a task in it"))
    if ENTRY_POINT.fullmatch(text) and not given.exists():
        return Code(task=text, folder=Path.cwd(), given=text)
    return None


def prepared_from_code(code: Code, overrides: Sequence[str], store: str | None) -> tuple[Prepared, Quickstart]:
    """Choose and check a spec for a user's code. Raises SpecError if the code or an override is wrong."""
    changes = store_overrides(overrides, store)
    paths = [split_override(one)[0] for one in changes]
    facts = _facts(code, apply_overrides({"task": code.task}, changes), sets_space=("space",) in paths)
    mapping = _picked(code, facts)
    changed = apply_overrides(mapping, changes)
    if not changed.get("space"):
        raise SpecError(code.source, ("space",), _no_space(code, facts))
    spec = parse_spec(changed, code.source)
    sets_some, sets_objectives = (any(path[0] == key for path in paths) for key in ("space", "objectives"))
    prepared = prepare(
        spec if sets_some else spec.model_copy(update={"space": None}),
        source=code.source,
        base_folder=code.folder,
        facts=None if sets_some and ("space",) not in paths else facts,
    )
    assert prepared.spec.space is not None  # noqa: S101 - `prepare` fills it in
    changed["space"] = prepared.spec.space.to_dict()
    notes = _notes(code, prepared.spec, facts, sets_space=sets_some, sets_objectives=sets_objectives)
    return prepared, Quickstart(spec=prepared.spec, mapping=changed, notes=notes, source=code.source)


def check_place_of_spec(path: Path, code: Code) -> None:
    """Raise SpecError for a path outside the module's folder, where the spec could not find its code."""
    if path.absolute().parent.resolve() != code.folder.resolve():
        allowed = f"a file in {os.path.relpath(code.folder)}, since a spec finds its code beside it"
        raise SpecError("--save-spec", (), found(str(path), allowed))


def _in_file(file: Path, name: str, text: str) -> Code:
    path = file.absolute()
    if not path.is_file():
        allowed = "a Python file that exists"
        raise SpecError(f"launch {text}", (), found(str(file), allowed) + near_file(path, "*.py"))
    if not _NAME.fullmatch(name):
        raise SpecError(f"launch {text}", (), found(name, "the name of a training function or a task in the file"))
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    if not all(part.isidentifier() for part in parts):
        allowed = "a file that can be imported, with only letters, digits and _ in its name"
        raise SpecError(f"launch {text}", (), found(str(file), allowed))
    return Code(task=f"{'.'.join(parts)}:{name}", folder=folder, given=text)


def _facts(code: Code, given: Mapping[str, Any], *, sets_space: bool) -> TaskFacts:
    spec = parse_spec({key: given[key] for key in ("task", "task_options") if key in given}, code.source)
    space = parse_spec({"task": code.task, "space": given["space"]}, code.source).space if sets_space else None
    return facts_of(spec.task, spec.task_options, source=code.source, folder=code.folder, space=space)


def _picked(code: Code, facts: TaskFacts) -> dict[str, Any]:
    metrics = (quality_of(facts), "cost_usd")
    return {
        "study": parse_spec({"task": code.task}).study,
        "task": code.task,
        "objectives": [{"metric": one, "direction": likely_direction(one)} for one in metrics],
        **({} if facts.space is None else {"space": facts.space.to_dict()}),
        "training": {"epochs": EPOCHS},
        "budget": {"hours": HOURS, "usd": USD, "trials": None},
    }


def _no_space(code: Code, facts: TaskFacts) -> str:
    module, _, name = code.task.partition(":")
    own = f"`space = {{...}}` in {module}.py" if facts.parameters is None else f"a method space() of {name}"
    return f"this code has no search space. Add {own}, or pass {_SET_SPACE}"


def _notes(
    code: Code, spec: StudySpec, facts: TaskFacts, *, sets_space: bool, sets_objectives: bool
) -> tuple[str, ...]:
    is_function = facts.parameters is None
    names = listed(spec.space.names()) if spec.space is not None else "none"
    metrics = [
        one.metric
        for one in spec.objectives
        if one.metric not in (*facts.reported, *CUMULATIVE_METRICS, *MEASURED_OF_FUNCTIONS)
    ]
    unsure = (f"{listed(metrics)}: {code.task.partition(':')[2]} has to report it; {_SET_OBJECTIVES} names another",)
    named = f"study {spec.study}: named after the code; --set study=NAME changes it"
    return (
        *((named,) if spec.study == parse_spec({"task": code.task}).study else ()),
        f"task {spec.task}: a {'training function' if is_function else 'task'} in {code.folder}",
        objectives_note(spec),
        *(unsure if is_function and metrics else ()),
        *(() if sets_objectives else _guessed_direction(quality_of(facts))),
        f"space: {names}, {'as set' if sets_space else 'its own'}",
        f"training: {spec.training.epochs} epochs, {'by default' if spec.training.epochs == EPOCHS else 'as set'}",
        budget_note(spec),
    )


def _guessed_direction(metric: str) -> tuple[str, ...]:
    if not direction_is_guess(metric):
        return ()
    objectives = f"[{{metric: {metric}, direction: maximize}}, {{metric: cost_usd, direction: minimize}}]"
    return (f"{metric}: minimized, which is a guess; --set 'objectives={objectives}' changes it",)
