"""Checks of a spec that need information about the task or the devices."""

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from search_spaces.drawing import complete
from search_spaces.messages import found, listed, meant, nearest, shown
from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter, SpaceError, Value
from search_spaces.space import Space
from studies.spec.sections import BaselineSpec, unknown_metrics
from studies.spec.spec_errors import Path, SpecError, first_problem
from studies.spec.study_spec import StudySpec, doubly_given
from trainers.commands.command import COMMAND, Command, unknown_names
from trainers.protocol import ALWAYS_MEASURED
from trainers.trainer_options import (
    RATE_OPTIONS,
    TRAINER_PARAMETERS,
    TrainerParameter,
    clashes,
    related,
    stream_problem,
)

MOST_COMPLETED = 500_000  # most values of first trials or baselines together, with those drawn for open parameters
_MOST_COMBINED = 50_000  # values of the combinations of options that are checked; a trial refuses any other clash
POSITIVE = frozenset({"cost_usd", "wall_seconds", "model_parameters", "latency_ms"})
"""Metrics that are above 0 for every model."""


def check_against_task(
    spec: StudySpec,
    task_parameters: Collection[str] | None,
    task_metrics: Collection[str] | None,
    default_space: Space,
    source: str = "spec",
) -> StudySpec:
    """Check a spec against its task. If the spec has no space, use the task's.

    With `task_parameters` or `task_metrics` None, any parameters or metrics are allowed. Raises SpecError for refused
    parameters or values, keys both in `training` and in the space, metrics that the task does not measure, and options
    that exclude each other.
    """
    space = spec.space if spec.space is not None else default_space
    if task_parameters is None and spec.space is None and not len(default_space):
        owner = "a command" if spec.is_command else "a training function"
        raise SpecError(source, ("space",), f"{owner} has no space of its own. Add a space with parameters to search")
    problems = [
        *_space_problems(space, task_parameters, _binding(spec, task_parameters)),
        *doubly_given(spec.training, space),
        *(_command_problems(spec, space) if spec.is_command else []),
        *([] if task_metrics is None else _metric_problems(spec, task_metrics)),
    ]
    if space.constraints and (problem := _problem_in(space, {})):
        problems.append((("space", *problem[0]), problem[1]))
    if problems:
        raise first_problem(source, problems)
    spec = spec.model_copy(update={"space": space})
    device = spec.resources.device
    check_options(spec, None if device == "auto" else device, source, has_own_loop=task_parameters is None)
    return spec


def _binding(spec: StudySpec, task_parameters: Collection[str] | None) -> Collection[str]:
    if task_parameters is not None:
        return TRAINER_PARAMETERS.keys()
    named = [name for name, _ in Command.of(spec.task_options).names()] if spec.is_command else []
    return ("world_size", *(RATE_OPTIONS if "scaled_learning_rate" in named else ()))


def with_first_trials(spec: StudySpec, proposed: Sequence[Mapping[str, Value]], source: str = "spec") -> StudySpec:
    """Check the spec's first trials, or add fitting ones of `proposed`. SpecError for parameters outside the space."""
    space, first = spec.space or Space({}), spec.search.first_trials
    _check_count(space, len(first), source, ("search", "first_trials"))
    for number, one in enumerate(first):
        if problem := _problem_in(space, one):
            path, text = problem
            raise SpecError(source, ("search", "first_trials", number, *path), text)
    fitting = (one for one in proposed if _problem_in(space, one) is None)
    kept = first or tuple({name: value for name, value in one.items() if value is not None} for one in fitting)
    return spec.model_copy(update={"search": spec.search.model_copy(update={"first_trials": kept})})


def with_baselines(
    spec: StudySpec,
    proposed: Sequence[Mapping[str, Any]],
    task_metrics: Collection[str] | None = None,
    source: str = "spec",
) -> StudySpec:
    """Check the spec's baselines, or add the task's if it has none. Baselines become first trials.

    Skips baselines of `proposed` outside the space (`left_out`). Raises SpecError if a baseline of the spec has
    parameters outside the space, or metrics that are not in `task_metrics` (None allows any).
    """
    space = spec.space or Space({})
    if spec.baselines is None:
        kept = tuple(
            BaselineSpec(**one) for one in proposed if "params" not in one or _problem_in(space, one["params"]) is None
        )
        return _beginning_with(spec.model_copy(update={"baselines": kept}))
    _check_count(space, len(spec.baselines), source, ("baselines",))
    for number, baseline in enumerate(spec.baselines):
        if baseline.params and (problem := _problem_in(space, baseline.params)):
            path, text = problem
            raise SpecError(source, ("baselines", number, "params", *path), text)
    if task_metrics is not None:
        problems = unknown_metrics(spec.baselines, list(dict.fromkeys([*task_metrics, *ALWAYS_MEASURED])))
        if problems:
            raise first_problem(source, problems)
    return _beginning_with(spec)


def left_out(spec: StudySpec, proposed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line with the reason for each of the task's baselines outside the space."""
    space, lines = spec.space or Space({}), []
    for one in proposed if spec.baselines is None else ():
        if "params" in one and (problem := _problem_in(space, one["params"])):
            path, text = problem
            why = f"{'.'.join(map(str, path))}: {text}" if path else text
            lines.append(f"baselines: {shown(one['name'])} is left out, since the space lacks its parameters ({why})")
    return lines


def _beginning_with(spec: StudySpec) -> StudySpec:
    first = spec.search.first_trials
    tried = tuple(one.params for one in spec.baselines or () if one.params and one.params not in first)
    return spec.model_copy(update={"search": spec.search.model_copy(update={"first_trials": (*tried, *first)})})


def _check_count(space: Space, count: int, source: str, path: Path) -> None:
    if count * len(space) > MOST_COMPLETED:
        problem = f"found {count:,} for {len(space):,} parameters, which are over {MOST_COMPLETED:,} values. Give fewer"
        raise SpecError(source, path, problem)


def _problem_in(space: Space, params: Mapping[str, Value]) -> tuple[tuple[str | int, ...], str] | None:
    try:
        complete(space, params, random.Random(0))
    except SpaceError as error:
        return tuple(error.path), error.problem
    return None


def check_options(spec: StudySpec, device: str | None, source: str = "spec", *, has_own_loop: bool = False) -> None:
    """Raise SpecError if options could exclude each other in a trial on this device (None: unknown).

    If the user's own loop trains, only `training` is checked: the loop may give other meanings to names in the space.
    """
    if device == "cpu" and spec.resources.backend == "nccl":
        why_not = "found nccl on a CPU, but NCCL carries messages between GPUs only; take gloo or auto, or device cuda"
        raise SpecError(source, ("resources", "backend"), why_not)
    checked = spec.model_copy(update={"space": Space({})}) if has_own_loop else spec
    for names in related():
        _check_together(checked, names, lambda values: clashes(values, device), source)


def check_stream(spec: StudySpec, source: str = "spec", *, has_schedule: bool) -> None:
    """Raise SpecError if an option needs the number of samples, which a stream does not have."""
    _check_together(
        spec, ("schedule", "samples_per_epoch", "warmup_epochs", "warmup_steps"),
        lambda values: stream_problem(values, has_own_schedule=has_schedule), source, at="samples_per_epoch",
    )  # fmt: skip


def _check_together(
    spec: StudySpec,
    names: tuple[str, ...],
    problem_of: Callable[[Mapping[str, Any]], str | None],
    source: str,
    *,
    at: str | None = None,
) -> None:
    """Raise SpecError if options in `names` could exclude each other in a trial."""
    space = spec.space if spec.space is not None else Space({})
    fixed = {name: taker.default for name, taker in TRAINER_PARAMETERS.items()} | spec.training.model_dump()
    for params in combinations(space, names):
        problem = problem_of({name: params.get(name, fixed[name]) for name in names})
        if problem is not None:
            searched = [name for name in names if name in space]
            # Default values never clash, so the user gave at least one of these names.
            told = [at] if at else [name for name in names if name in spec.training.model_fields_set]
            given = [*searched, *told, *names]
            hint = "; or make one of them conditional on the other with `when`" if len(searched) > 1 else ""
            raise SpecError(source, ("space" if searched else "training", given[0]), problem + hint)


def with_world_sizes_that_fit(spec: StudySpec, slots: int) -> StudySpec:
    """Return the spec without world sizes above `slots`, for a space that the task chose."""
    space = spec.space or Space({})
    parameter = space.parameter("world_size") if "world_size" in space else None
    if not isinstance(parameter, Categorical):
        return spec
    form = space.to_dict()
    form["world_size"]["choices"] = [c for c in parameter.choices if isinstance(c, int) and c <= max(slots, 1)] or [1]
    return spec.model_copy(update={"space": Space.from_dict(form)})


def check_world_sizes(spec: StudySpec, slots: int, source: str = "spec") -> None:
    """Raise SpecError if a world size of the space exceeds the number of slots."""
    parameter = spec.space.parameter("world_size") if spec.space is not None and "world_size" in spec.space else None
    allowed = f"at most {slots}, the number of slots"
    if parameter is None:
        if slots < 1:
            raise SpecError(source, ("resources", "slots"), found(slots, "at least 1 slot for a world size of 1"))
    elif isinstance(parameter, Categorical):
        for choice in parameter.choices:
            if isinstance(choice, int) and choice > slots:
                raise SpecError(source, ("space", "world_size", "choices"), found(choice, allowed))
    elif parameter.top > slots:
        raise SpecError(source, ("space", "world_size", "high"), found(parameter.high, allowed))


def _space_problems(
    space: Space, task_parameters: Collection[str] | None, binding: Collection[str]
) -> list[tuple[Path, str]]:
    own = task_parameters if task_parameters is not None else [name for name in space.names() if name != "epochs"]
    names = [*(name for name in own if name not in TRAINER_PARAMETERS), *TRAINER_PARAMETERS]
    problems: list[tuple[Path, str]] = []
    for name in space.names():
        if name == "epochs" and name not in names:
            problem = "found 'epochs', but all trials train the same number of epochs: set training.epochs instead"
            problems.append((("space", name), problem))
        elif name not in names:
            problem = f"found a parameter that neither the trainer nor the task takes, allowed: {listed(names)}"
            hint = "" if problems else meant(name, names)  # only the first problem is shown
            problems.append((("space", name), problem + hint))
        elif name in binding:
            taker = TRAINER_PARAMETERS[name]
            problems.extend(_domain_problems(("space", name), space.parameter(name), taker))
    return problems


def _command_problems(spec: StudySpec, space: Space) -> list[tuple[Path, str]]:
    sometimes = [name for name, entry in space.entries() if isinstance(entry, Conditional)]
    parameters = [*space.names(), *spec.training.model_dump()]
    problems = unknown_names(Command.of(spec.task_options), parameters, sometimes)
    return [(("task", COMMAND), problem) for problem in problems]


def _domain_problems(path: Path, parameter: Parameter, taker: TrainerParameter) -> list[tuple[Path, str]]:
    """Return the values of a parameter that the trainer refuses; of a range, only the ends are checked."""
    if isinstance(parameter, Categorical):
        checked = [("choices", taker.problem(choice)) for choice in parameter.choices]
    elif taker.kind == "choice":
        checked = [("type", f"found {_type(parameter)}, allowed: categorical, with choices from {taker.allowed()}")]
    elif taker.kind == "whole" and isinstance(parameter, Float):
        checked = [("type", "found float, allowed: int, categorical")]
    else:
        checked = [("low", taker.problem(parameter.low)), ("high", taker.problem(parameter.high))]
    return [((*path, key), problem) for key, problem in checked if problem is not None]


def _type(parameter: Float | Int) -> str:
    return shown("int" if isinstance(parameter, Int) else "float").strip("'")


def _metric_problems(spec: StudySpec, task_metrics: Collection[str]) -> list[tuple[Path, str]]:
    metrics = [*task_metrics, *(metric for metric in ALWAYS_MEASURED if metric not in task_metrics)]
    named = [(("objectives", index, "metric"), one.metric) for index, one in enumerate(spec.objectives)]
    named += [(("constraints", index, "metric"), one.metric) for index, one in enumerate(spec.constraints)]
    unknown = [
        (path, found(metric, listed(metrics), nearest(metric, metrics)))
        for path, metric in named
        if metric not in metrics
    ]
    impossible: list[tuple[Path, str]] = [
        (("constraints", index, "max"), found(one.max, "a number above 0, as every model has"))
        for index, one in enumerate(spec.constraints)
        if one.metric in POSITIVE and one.max is not None and one.max <= 0
    ]
    return [*unknown, *impossible]


def combinations(space: Space, names: Collection[str]) -> Iterator[dict[str, Value]]:
    """Yield a configuration for each combination of choices of some parameters; of ranges, the low end."""
    wanted_of = {name: form["when"] for name, form in space.to_dict().items() if "when" in form}
    parents = {name: _parent(when) for name, when in wanted_of.items()}
    varied = _with_ancestors([name for name in names if name in space], parents)
    hung_from: dict[str, list[Value]] = {}
    for when in wanted_of.values():
        hung_from.setdefault(_parent(when), []).extend(_values(when))
    tried = [_tried(space.parameter(name), hung_from.get(name, [])) for name in varied]
    for values in itertools.islice(itertools.product(*tried), 1 + _MOST_COMBINED // max(1, len(space))):
        chosen = dict(zip(varied, values, strict=True))
        yield space.walk(lambda name, parameter, chosen=chosen: chosen.get(name, _first(parameter)))  # type: ignore[misc]


def _with_ancestors(names: list[str], parents: Mapping[str, str]) -> list[str]:
    found = dict.fromkeys(names)
    for name in names:
        above = parents.get(name)
        while above is not None and above not in found:
            found[above] = None
            above = parents.get(above)
    return list(found)


def _tried(parameter: Parameter, hung_from: Sequence[Value]) -> list[Value]:
    if isinstance(parameter, Categorical):
        return list(parameter.choices)
    return list(dict.fromkeys([_first(parameter), *hung_from]))


def _first(parameter: Parameter) -> Value:
    return parameter.choices[0] if isinstance(parameter, Categorical) else parameter.low


def _parent(when: object) -> str:
    assert isinstance(when, Mapping)  # noqa: S101 - the form of a condition
    return str(next(iter(when)))


def _values(when: object) -> list[Value]:
    assert isinstance(when, Mapping)  # noqa: S101 - the form of a condition
    values = next(iter(when.values()))
    return list(values) if isinstance(values, list | tuple) else [values]
