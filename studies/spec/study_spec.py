"""The spec as an immutable value with all defaults. Imports only light modules."""

import copy
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, field_validator, model_validator

from search_spaces.messages import LONGEST_VALUE, cut, found, in_full, listed, meant, shown
from search_spaces.parameters import Categorical, Conditional, Float, Int, first_repeated
from search_spaces.space import Space, form_of
from studies.records.records import Constraint, Objective
from studies.spec.metric_names import in_long_form
from studies.spec.section import Section, check_json, check_texts
from studies.spec.sections import (
    ENTRY_POINT,
    BaselineSpec,
    BudgetSpec,
    CheckpointsSpec,
    ConstraintSpec,
    FaultsSpec,
    Finite,
    ObjectiveSpec,
    ResourcesSpec,
    SearchSpec,
    TrainingSpec,
)
from studies.spec.spec_errors import (
    Path,
    SpecError,
    SpecValueError,
    dotted,
    field_at,
    from_validation,
    holds_mapping,
    model_of,
    unknown_key,
)
from studies.spec.yaml_reader import read_yaml, read_yaml_file
from trainers.commands.command import COMMAND, problems_of

CHANGEABLE = ("budget", "resources", "checkpoints", "faults")
"""Sections that `resume --set` may change."""

_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_TASK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")

_NULL_IS_ABSENT = (
    "study", "task_options", "objectives", "reference_point", "constraints", "training", "search", "budget",
    "resources", "checkpoints", "faults",
)  # fmt: skip


class StudySpec(Section):
    """A whole spec. `docs/spec.md` explains each key.

    Attributes:
        study: Name of the study; by default the task's name, with invalid characters replaced.
        task: Built-in task's name, "module:Class", "module:function", or "command", with options under `task` in YAML.
        space: Space to search; None takes the task's own, filled in by `check_against_task`.
        baselines: Comparisons for the models; None takes the task's own, filled in by `with_baselines`.
        promotion: Bounds of confirmed metrics for `automl promote`, by name: the smallest allowed value of a maximized
            objective, the largest of any other metric.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    ADVICE: ClassVar[Mapping[str, str]] = {"name": "write study: NAME"}

    study: Annotated[
        str, Field(strict=True, description="letters, digits, - _ and ., at most 100 of them, no . in front")
    ] = ""
    task: Annotated[str, Field(strict=True, description="the name of a built-in task, or module:Class")]
    task_options: Annotated[
        dict[str, Any], Field(default_factory=dict, description="a mapping of texts to what JSON can hold")
    ]
    objectives: Annotated[
        tuple[ObjectiveSpec, ...], Field(min_length=1, description="a list of at least one {metric, direction}")
    ] = (ObjectiveSpec(metric="val_error"), ObjectiveSpec(metric="cost_usd"))
    reference_point: Annotated[
        Literal["auto"] | dict[str, Finite], Field(description="auto, or a finite number for each objective's metric")
    ] = "auto"
    constraints: Annotated[
        tuple[ConstraintSpec, ...], Field(description="a list of {metric, min, max}, min or max may be left out")
    ] = ()
    space: Annotated[Space | None, Field(description="a mapping of parameters, or null for the task's own")] = None
    training: TrainingSpec = TrainingSpec()
    search: SearchSpec = SearchSpec()
    baselines: Annotated[
        tuple[BaselineSpec, ...] | None,
        Field(description="a list of {name, params} or {name, metrics}, or null for the task's own"),
    ] = None
    budget: BudgetSpec = BudgetSpec()
    resources: ResourcesSpec = ResourcesSpec()
    checkpoints: CheckpointsSpec = CheckpointsSpec()
    faults: FaultsSpec = FaultsSpec()
    store: Annotated[str, Field(strict=True, description="a database's URL, such as sqlite:///automl.db")] = (
        "sqlite:///automl.db"
    )
    mlflow: Annotated[str, Field(strict=True, min_length=1, description="a tracking URI, or off")] = (
        "sqlite:///mlflow.db"
    )
    promotion: Annotated[
        dict[str, Finite], Field(default_factory=dict, description="a mapping of metrics to finite numbers")
    ]

    @property
    def is_command(self) -> bool:
        """Return whether each trial runs a program (docs/commands.md)."""
        return self.task == COMMAND

    @property
    def objective_records(self) -> tuple[Objective, ...]:
        """The objectives as records."""
        return tuple(objective.record() for objective in self.objectives)

    @property
    def constraint_records(self) -> tuple[Constraint, ...]:
        """The constraints as records."""
        return tuple(constraint.record() for constraint in self.constraints)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        filled = {
            key: value for key, value in in_long_form(raw).items() if value is not None or key not in _NULL_IS_ABSENT
        }
        if isinstance(filled.get("task"), Mapping):
            filled |= _task_of_command(filled["task"], filled.get("task_options"))
        elif filled.get("task") == COMMAND:
            _check_command(filled.get("task_options") or {}, "task_options")
        if "study" not in filled and isinstance(filled.get("task"), str):
            filled["study"] = re.sub(r"[^A-Za-z0-9._-]+", "-", filled["task"]).lstrip(".")[:100]
        return filled

    @field_validator("study")
    @classmethod
    def _safe_in_paths(cls, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            raise SpecValueError(found(name, str(cls.model_fields["study"].description)))
        return name

    @field_validator("task", mode="before")
    @classmethod
    def _importable(cls, task: object) -> object:
        if isinstance(task, str) and not _TASK.fullmatch(task) and not ENTRY_POINT.fullmatch(task):
            raise SpecValueError(found(task, str(cls.model_fields["task"].description)))
        return task

    @field_validator("task_options")
    @classmethod
    def _plain(cls, options: dict[str, object]) -> dict[str, object]:
        check_json(options)
        return options

    @field_validator("constraints", mode="before")
    @classmethod
    def _of_metrics(cls, given: object) -> object:
        for index, one in enumerate(given if isinstance(given, list | tuple) else [given]):
            if isinstance(one, str):
                problem = f"found {shown(one)}, allowed: bounds of a metric, a mapping with the keys metric, min, max"
                place = (index,) if isinstance(given, list | tuple) else ()
                raise SpecValueError(f"{problem}. Put a relation of parameters into space.constraints", place)
        return given

    @field_validator("objectives", "constraints")
    @classmethod
    def _all_differ(cls, listed_metrics: tuple[Any, ...]) -> tuple[Any, ...]:
        metrics = [one.metric for one in listed_metrics]
        if (index := first_repeated(metrics)) is not None:
            raise SpecValueError(f"found {shown(metrics[index])} twice. Name each metric once", (index, "metric"))
        return listed_metrics

    @field_validator("baselines")
    @classmethod
    def _names_differ(cls, baselines: tuple[BaselineSpec, ...] | None) -> tuple[BaselineSpec, ...] | None:
        names = [one.name for one in baselines or ()]
        if (index := first_repeated(names)) is not None:
            raise SpecValueError(f"found {shown(names[index])} twice. Give each baseline its own name", (index, "name"))
        return baselines

    @field_validator("space", mode="before")
    @classmethod
    def _read_space(cls, space: object) -> object:
        if space is None or isinstance(space, Space):
            return space
        return Space.from_dict(space)

    @field_serializer("space")
    def _write_space(self, space: Space | None) -> dict[str, Any] | None:
        return None if space is None else space.to_dict()

    @field_validator("store")
    @classmethod
    def _is_url(cls, store: str) -> str:
        if _URL.fullmatch(store) is None:
            raise SpecValueError(found(store, str(cls.model_fields["store"].description)))
        return store

    @field_validator("mlflow", mode="before")
    @classmethod
    def _off(cls, mlflow: object) -> object:
        # YAML 1.1, and so PyYAML, reads a bare `off` as false.
        return "off" if mlflow is False or mlflow is None else mlflow

    @model_validator(mode="after")
    def _sections_agree(self) -> "StudySpec":
        if isinstance(self.reference_point, dict):
            _check_reference(self.reference_point, [objective.metric for objective in self.objectives])
        for path, problem in doubly_given(self.training, self.space):
            raise SpecValueError(problem, path)
        return self


def load_spec(path: str | FilePath, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a spec from a YAML file, with overrides (`path=value`). Raises SpecError if it is wrong."""
    raw = read_yaml_file(FilePath(path))
    if raw is None:
        raise SpecError(str(path), (), "the file is empty. Write a mapping with at least the key task")
    mapping = _as_mapping(raw, str(path))
    return _parse_with(mapping, overrides, str(path))


def parse_spec(mapping: object, source: str = "spec") -> StudySpec:
    """Check a spec from YAML, JSON or Python objects. Raises SpecError if it is wrong."""
    raw = as_plain(_as_mapping(mapping, source))
    check_texts(raw, source)
    try:
        return StudySpec.model_validate(raw)
    except ValidationError as error:
        raise from_validation(error, raw, StudySpec, source) from None


def apply_overrides(mapping: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Return a copy of a spec's mapping with overrides (`path=value`). Raises SpecError for unknown paths."""
    with suppress(SpecValueError):  # parsing will report it, with the path
        mapping = in_long_form(mapping)
    return apply_to(StudySpec, mapping, overrides)


def apply_resume_overrides(spec: StudySpec, overrides: Sequence[str]) -> StudySpec:
    """Return the spec with overrides in `CHANGEABLE` sections. Raises SpecError for other keys."""
    for override in overrides:
        path, _ = split_override(override)
        if path[0] not in CHANGEABLE:
            problem = f"found a key that cannot change after launch, allowed: keys of {listed(CHANGEABLE)}"
            raise SpecError(f"--set {shown(override)}", path, problem)
    return _parse_with(spec_to_mapping(spec), overrides, spec.study)


def spec_to_mapping(spec: StudySpec) -> dict[str, Any]:
    """Return the spec as JSON data for `parse_spec`."""
    mapping = spec.model_dump(mode="json")
    varied = spec.space.names() if spec.space is not None else ()
    mapping["training"] = {key: value for key, value in mapping["training"].items() if key not in varied}
    return mapping


def doubly_given(training: TrainingSpec, space: Space | None) -> list[tuple[Path, str]]:
    """Return path and problem of each key in both `training` and the space."""
    both = [key for key in training.model_fields_set if space is not None and key in space]
    return [
        (
            ("training", key),
            f"found {shown(getattr(training, key))}, but {key} is in both training and space. Remove one of the two",
        )
        for key in sorted(both)
    ]


def _parse_with(mapping: Mapping[str, object], overrides: Sequence[str], source: str) -> StudySpec:
    """Apply overrides and check the spec; a problem at an overridden path names the override."""
    changed = apply_overrides(mapping, overrides)
    try:
        return parse_spec(changed, source)
    except SpecError as error:
        for override in reversed(overrides):
            path, _ = split_override(override)
            shorter = min(len(path), len(error.path))
            if tuple(map(str, error.path[:shorter])) == path[:shorter] and error.path:
                raise SpecError(
                    f"{source} with --set {shown(override)}", error.path, error.problem, error.more
                ) from None
        raise


def _as_mapping(raw: object, source: str) -> dict[str, object]:
    if not isinstance(raw, Mapping):
        raise SpecError(source, (), found(raw, "a mapping with at least the key task"))
    for key in raw:
        if not isinstance(key, str):
            raise SpecError(source, (), f"found the key {shown(key)}, allowed: {listed(StudySpec.model_fields)}")
    return dict(raw)


def _task_of_command(task: Mapping[str, object], options: object) -> dict[str, object]:
    if options:
        raise SpecValueError(found(options, "none, since a command has its options in task"), ("task_options",))
    _check_command(task, "task")
    return {"task": COMMAND, "task_options": dict(task)}


def _check_command(options: Mapping[str, object], key: str) -> None:
    for path, problem in problems_of(options):
        raise SpecValueError(problem, (key, *path))


def _check_reference(reference: Mapping[str, float], metrics: Sequence[str]) -> None:
    for metric, value in reference.items():
        if metric not in metrics:
            problem = f"found {shown(value)} for a metric without an objective, allowed: {listed(metrics)}"
            raise SpecValueError(problem + meant(metric, metrics), ("reference_point", metric))
        if not math.isfinite(value):
            raise SpecValueError(found(value, "a finite number"), ("reference_point", metric))
    for metric in metrics:
        if metric not in reference:
            raise SpecValueError("found nothing, allowed: a finite number", ("reference_point", metric))


DEEPEST = 3  # depth at which typed objects can be in a spec: `search.pruner`, `objectives.0`, `space.width`


def as_plain(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the mapping with sections, spaces and parameters in YAML's form."""
    return {key: _plain(value, DEEPEST - 1) for key, value in spec.items()}


def _plain(value: object, levels: int) -> object:
    if isinstance(value, Section):
        value = value.given()
    elif isinstance(value, Space):
        return value.to_dict()
    elif isinstance(value, Float | Int | Categorical | Conditional):
        return form_of(value)
    if levels and isinstance(value, Mapping):
        return {key: _plain(inner, levels - 1) for key, inner in value.items()}
    if levels and isinstance(value, list | tuple):
        plain = [_plain(inner, levels - 1) for inner in value]
        return plain if any(one is not other for one, other in zip(plain, value, strict=True)) else value
    return value


NOT_COMPARED = (*CHANGEABLE, "store", "mlflow")  # keys in which two specs of one study may differ

_CONTEXT = 15  # number of equal characters that are printed before the first one that differs


class _Nothing:
    """Marks a key or entry that one of two specs lacks."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def differences(stored: StudySpec, given: StudySpec) -> list[str]:
    """Return differences such as `training.epochs: 20 in the store, 30 given`, except in `NOT_COMPARED`."""
    return [
        "{}: {} in the store, {} given".format(dotted(path), *_shown_apart(before, after))
        for path, before, after in _differing(spec_to_mapping(stored), spec_to_mapping(given))
        if path[0] not in NOT_COMPARED
    ]


def differing_keys(stored: StudySpec, given: StudySpec, sections: Sequence[str]) -> list[str]:
    """Return the dotted keys in `sections` whose values differ between two specs."""
    found = _differing(spec_to_mapping(stored), spec_to_mapping(given))
    return [dotted(path) for path, _, _ in found if path[0] in sections]


def _differing(before: object, after: object, path: Path = ()) -> Iterator[tuple[Path, object, object]]:
    """Yield different values with their paths; of lists only the first, since an insertion moves the rest."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _differing(before.get(key, _NOTHING), after.get(key, _NOTHING), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(itertools.zip_longest(before, after, fillvalue=_NOTHING))
        yield from itertools.islice((one for i, pair in pairs for one in _differing(*pair, (*path, i))), 1)
    elif in_full(before) != in_full(after):  # as texts: the store has no passwords, and true is not 1
        yield path, before, after


def _shown_apart(before: object, after: object) -> tuple[str, str]:
    """Return both values, shortened so that the difference is visible."""
    one, other = in_full(before), in_full(after)
    equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    if equal < LONGEST_VALUE - _CONTEXT:
        return shown(before), shown(after)
    return f"... {cut(one[equal - _CONTEXT :])}", f"... {cut(other[equal - _CONTEXT :])}"


FREE_FORM = (("space",), ("search", "pruner"))
"""Paths below which users choose the keys, besides `dict` fields: parameters and options of a pruner."""


def split_override(override: str) -> tuple[Path, object]:
    """Split `path=value`, and read the value as YAML. Raises SpecError if a part is missing or invalid."""
    source = f"--set {shown(override)}"
    text, equals, value = override.partition("=")
    path = tuple(part.strip() for part in text.split("."))
    if not equals or not all(path):
        raise SpecError(source, (), f"{found(override, 'path=value, such as budget.usd=5')}")
    if not value.strip():
        raise SpecError(source, path, "nothing follows the '='. Give a value, or null for none")
    return path, read_yaml(value, source)


def apply_to(model: type[BaseModel], mapping: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Return a deep copy of the mapping with each `path=value` set; later overrides win.

    Raises SpecError for paths that `model` does not have; below `FREE_FORM` and `dict` fields, any path is valid.
    """
    changed: dict[str, object] = copy.deepcopy(dict(mapping))
    for override in overrides:
        path, value = split_override(override)
        _check_path(model, path, source=f"--set {shown(override)}")
        _put(changed, path, value, source=f"--set {shown(override)}")
    return changed


def _check_path(model: type[BaseModel], path: Path, source: str) -> None:
    if any(path[: len(free)] == free for free in FREE_FORM):
        return
    for length in range(1, len(path) + 1):
        here = path[:length]
        if _is_index(here[-1]):
            continue
        within = field_at(model, here[:-1])
        if holds_mapping(within):
            return
        if length > 1 and model_of(within) is None:
            problem = f"{shown(dotted(path))} does not exist: {dotted(here[:-1])} is one value, without keys inside"
            raise SpecError(source, here, problem)
        if field_at(model, here) is None:
            raise SpecError(source, here, unknown_key(model, here))


def _put(target: dict[str, object], path: Path, value: object, source: str) -> None:
    here: Any = target
    for depth, part in enumerate(path[:-1]):
        here = _step_into(here, part, path[: depth + 1], source)
    last = path[-1]
    if isinstance(here, list):
        here[_index(here, last, path, source)] = value
    else:
        here[last] = value


def _step_into(here: Any, part: str | int, path: Path, source: str) -> Any:
    if isinstance(here, list):
        position: Any = _index(here, part, path, source)
    else:
        position = part
        if here.get(part) is None:
            here[part] = {}
    if path == ("search", "pruner") and isinstance(here[position], str):
        here[position] = {"name": here[position]}
    if not isinstance(here[position], dict | list):
        raise SpecError(source, path, found(here[position], "a mapping or a list, to set something inside it"))
    return here[position]


def _index(here: list[object], part: str | int, path: Path, source: str) -> int:
    if _is_index(part) and int(part) < len(here):
        return int(part)
    raise SpecError(source, path, found(part, f"an index below {len(here)}"))


def _is_index(part: str | int) -> bool:
    return isinstance(part, int) or (part.isascii() and part.isdigit())
