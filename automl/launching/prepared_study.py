"""Checks a parsed spec before anything is written, and prepares the study's launch."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automl.launching.spec_reading import absolute_task_options, check_outputs, with_absolute_paths
from search_spaces.drawing import example_params
from search_spaces.messages import listed
from search_spaces.space import Space
from studies.control.assembly import PoolSpec, assemble
from studies.gangs.available_slots import AvailableSlots, find_slots
from studies.gangs.pool_protocol import PoolError
from studies.money.budget import Price, price_of
from studies.search.model.transfer import EarlierStudy
from studies.search.policy import Policy
from studies.search.user_objects import make_importable
from studies.spec.checks import (
    check_against_task,
    check_options,
    check_stream,
    check_world_sizes,
    left_out,
    with_baselines,
    with_first_trials,
    with_world_sizes_that_fit,
)
from studies.spec.metric_names import quality_metric
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import StudySpec
from studies.storage.schema.engine import StoreError, parse_url
from trainers.commands.command import COMMAND, Command, missing_program, search_path
from trainers.contract.task import Params, baselines_of, declared_metrics, first_trials_of, parameters_of, space_of
from trainers.contract.task_loading import load_task
from trainers.protocol import ALWAYS_MEASURED, CUMULATIVE_METRICS, OUR_METRICS, Diagnostics, TaskError
from trainers.trial_settings import unheeded

PROBE = (sys.executable, "-P", "-m", "trainers.local.try_out_task")
"""Command of the process that tries out a task."""
PROBE_SECONDS = 600.0

MEASURED_OF_FUNCTIONS = ("model_parameters", "peak_memory_bytes")
"""Metrics that a training function need not report. `model_parameters` needs a prepared model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFacts:
    """Properties of a task.

    Attributes:
        parameters: The task's own parameters. None: any, for a training function or a command.
        metrics: Metrics that the task measures. None: any, for a training function or a command.
        reported: Metrics in the source of a training function, which may report others.
        baselines: Baselines of the task's models, from `baselines_of`.
        data_check: Findings of a built-in task in its files: `findings`, one line each, and `columns`.
    """

    parameters: tuple[str, ...] | None
    metrics: tuple[str, ...] | None
    space: Space | None
    reported: tuple[str, ...] = ()
    first_trials: tuple[Params, ...] = ()
    baselines: tuple[Mapping[str, Any], ...] = ()
    is_stream: bool = False
    has_schedule: bool = False
    data_check: Mapping[str, Any] = field(default_factory=dict)


def facts_of(
    task: str,
    options: Mapping[str, Any],
    *,
    source: str,
    folder: Path,
    space: Space | None = None,
    by_module: bool = False,
) -> TaskFacts:
    """Return the parameters, metrics and space of a task.

    A built-in task that declares its metrics is asked in this process, without torch. Other tasks are tried out in
    another process, with data, a model and a few samples.

    Raises:
        SpecError: The task cannot be loaded, or fails.
    """
    if ":" in task:
        _refuse_foreign(task, folder, source)
    try:
        if task == COMMAND:
            return _facts_of_command(options, source, folder)
        if ":" not in task:
            loaded = load_task(task, options)
            metrics = declared_metrics(loaded)
            if metrics is not None and not by_module:
                return TaskFacts(
                    parameters=parameters_of(loaded),
                    metrics=metrics,
                    space=space_of(loaded),
                    first_trials=first_trials_of(loaded),
                    baselines=baselines_of(loaded),
                    data_check=loaded.data_check() if hasattr(loaded, "data_check") else {},
                )
    except TaskError as error:
        raise SpecError(source, ("task",), " ".join(str(error).split())) from None
    question = {
        "task": task,
        "task_options": dict(options),
        "python_path": [str(folder)],
        "params": None if space is None else example_params(space),
        "by_module": by_module,
    }
    answer = ask(question, source)
    own = Space.from_dict(answer["space"]) if answer["space"] else None
    if answer["parameters"] is None:
        return TaskFacts(parameters=None, metrics=None, space=own, reported=tuple(answer.get("reported", ())))
    return TaskFacts(
        parameters=tuple(answer["parameters"]),
        metrics=tuple(answer["metrics"]),
        space=own,
        first_trials=tuple(answer.get("first_trials", ())),
        baselines=tuple(answer.get("baselines", ())),
        is_stream=answer["samples"] is None,
        has_schedule=answer["has_schedule"],
    )


def _refuse_foreign(task: str, folder: Path, source: str) -> None:
    """Refuse a function that only `automl.search` can run: an Optuna objective, or a trainable of Ray Tune."""
    module, _, name = task.partition(":")
    path = folder / f"{module.replace('.', '/')}.py"
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # no file of the user, or a fault that importing reports
        return
    function = next((one for one in body if isinstance(one, ast.FunctionDef) and one.name == name), None)
    if function is None:
        return
    calls = [(ast.unparse(one.func), one.keywords) for one in ast.walk(function) if isinstance(one, ast.Call)]
    called, first = {name for name, _ in calls}, next((one.arg for one in function.args.args), "")
    reported = {value.arg for name, values in calls if name == f"{first}.report" for value in values}
    if f"{first}.epochs" in called or reported - {"value", "step"}:
        return  # a training function: Optuna's report() takes a value and a step, ours takes metrics by name
    if any(one.startswith(f"{first}.suggest_") for one in called):
        kind, more = "an Optuna objective", "objectives={'value': 'min'}"
    elif called & {f"{one}.report" for one in ("tune", "train", "session", "ray.tune", "ray.train")}:
        kind, more = "a trainable of Ray Tune", "space=param_space, objectives={'loss': 'min'}"
    else:
        return
    call = f"if __name__ == '__main__': automl.search({name}, {more})"
    problem = f"{name} is {kind}, which only Python code can search. Put `{call}` into {path.name}, and run the file"
    raise SpecError(source, ("task",), problem)


def _facts_of_command(options: Mapping[str, Any], source: str, folder: Path) -> TaskFacts:
    """Check that a command's program exists. Its parameters and metrics are unknown."""
    problem = missing_program(Command.of(options), folder, search_path())
    if problem is not None:
        raise SpecError(source, ("task", COMMAND), problem)
    return TaskFacts(parameters=None, metrics=None, space=None)


def ask(question: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Try out a task in another process. Raises SpecError if that process fails or exceeds `PROBE_SECONDS`."""
    task = question["task"]
    try:
        done = subprocess.run(  # noqa: S603 - a module of this project
            PROBE, input=json.dumps(question), capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"{task!r} was tried out, and gave no answer within {PROBE_SECONDS:g} s"
        raise SpecError(source, ("task",), problem) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SpecError(source, ("task",), f"{task!r} {_ending(done)}") from None
    if answer["error"]:
        raise SpecError(source, ("task",), answer["error"])
    return answer


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    """Describe how the process ended, with its last line of output."""
    code = done.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    last = done.stderr.strip().splitlines()[-1:]
    return ": ".join([f"{how} while it was tried out", *last])


def quality_of(facts: TaskFacts) -> str:
    """Return the metric to optimize, from the task's metrics or a training function's reports."""
    reported = [name for name in facts.reported if name not in OUR_METRICS]
    reported = reported or [name for name in ("val_loss", "train_loss") if name in facts.reported]
    of_validation = sorted(reported, key=lambda name: not name.startswith("val"))
    return quality_metric(facts.metrics or of_validation or ("val_error",))


_LEARNT = (
    "search.learn_space: parameters that trials request beyond the space ({}) are learned as trials run, as in Optuna "
    "(sampler {}, pruner {}). The model of the search (cokriging, break_even) and from_studies need a complete space. "
    "Only parameters of the space can be enqueued or named in first_trials"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A checked study that can be launched.

    Attributes:
        base_folder: Base of relative paths and of the user's own task.
        diagnostics: Files that the ranks of a single training write.
        has_countable_models: False for a training function or a command.
    """

    spec: StudySpec
    source: str
    base_folder: Path
    place: PoolSpec
    places: AvailableSlots
    price: Price
    warnings: tuple[str, ...] = ()
    earlier: tuple[EarlierStudy, ...] = ()
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    has_countable_models: bool = True
    data_check: Mapping[str, Any] = field(default_factory=dict)


def prepare(spec: StudySpec, *, source: str, base_folder: Path, facts: TaskFacts | None = None) -> Prepared:
    """Check that a spec fits its task, its search options and this machine.

    Args:
        base_folder: Base of relative paths and of the user's own task.
        facts: Facts for these options and this space; None asks the task.

    Raises:
        SpecError: The spec does not fit; the message names the key.
    """
    folder = base_folder.absolute()
    _check_store_url(spec, source)
    spec = with_absolute_paths(spec, source, Path.cwd())
    check_outputs(spec, source)
    options = absolute_task_options(spec.task, spec.task_options, folder, source=source)
    spec = spec.model_copy(update={"task_options": options})
    is_tasks_space, names = spec.space is None, () if spec.space is None else spec.space.names()
    by_module = spec.training.init_by_module or "init_by_module" in names
    task = facts or facts_of(spec.task, options, source=source, folder=folder, space=spec.space, by_module=by_module)
    spec = check_against_task(spec, task.parameters, task.metrics, task.space or Space({}), source)
    _check_may_learn(spec, source, declares=task.parameters is not None)
    spec = with_first_trials(spec, task.first_trials if is_tasks_space else (), source)
    without = left_out(spec, task.baselines)
    spec = with_baselines(spec, task.baselines, task.metrics, source)
    try:
        resources = spec.resources
        places = find_slots(
            resources.device, resources.cpus_per_rank, resources.ray_address, autoscale=resources.autoscale
        )
    except PoolError as error:
        raise SpecError(source, (), str(error)) from None
    check_options(spec, places.device, source, has_own_loop=task.parameters is None)
    if task.is_stream:
        check_stream(spec, source, has_schedule=task.has_schedule)
    slots = places.slots if spec.resources.slots == "auto" else spec.resources.slots
    _check_gpus(spec, places, slots, source)
    spec = with_world_sizes_that_fit(spec, slots) if is_tasks_space else spec
    check_world_sizes(spec, slots, source)
    price = _price(spec, places)
    _check_is_limited(spec, price, source)
    place = PoolSpec(device=places.device, slots=slots, usd_per_slot_hour=price.usd_per_slot_hour)
    rungs = _check_search(spec, source, folder, place)
    return Prepared(
        spec=spec,
        source=source,
        base_folder=folder,
        place=place,
        places=places,
        price=price,
        has_countable_models=task.parameters is not None,
        data_check=task.data_check,
        warnings=(
            *_warnings(spec, places, slots),
            *without,
            *_warnings_of_search(spec, rungs),
            *(_warnings_of_function(spec) if task.parameters is None and not spec.is_command else ()),
            *(_warnings_of_metrics(spec, task.reported) if task.metrics is None else ()),
        ),
    )


def _check_store_url(spec: StudySpec, source: str) -> None:
    try:
        parse_url(spec.store)
    except StoreError as error:
        raise SpecError(source, (), str(error)) from None


def _check_may_learn(spec: StudySpec, source: str, *, declares: bool) -> None:
    """Raise SpecError for `search.learn_space` with a task or a command."""
    if spec.search.learn_space and (declares or spec.is_command):
        what = "a command" if spec.is_command else "a task"
        problem = f"only objectives for Optuna request parameters at run time, and this is {what}. Set it to false"
        raise SpecError(source, ("search", "learn_space"), problem)


def _check_search(spec: StudySpec, source: str, folder: Path, place: PoolSpec) -> tuple[int, ...]:
    """Build the search and suggest a first trial, to find errors. Returns the rungs."""
    name, advisor = spec.search.sampler, spec.search.advisor
    is_own = ":" in name
    if advisor is not None and (problem := missing_program(Command(parts=advisor.command), folder, search_path())):
        raise SpecError(source, ("search", "advisor", "command"), problem)
    if is_own or ":" in spec.search.pruner.name:
        make_importable(folder)
    assembled = assemble(spec, place, source=source)
    rungs = _rungs(spec, source, assembled.policy)
    try:
        assembled.suggester.suggest(0, ())
    except (Exception, SystemExit) as error:
        if not is_own:
            raise
        problem = f"{name!r} cannot suggest a trial ({type(error).__name__}: {error})"
        raise SpecError(source, ("search", "sampler"), problem) from None
    return rungs


def _rungs(spec: StudySpec, source: str, policy: Policy) -> tuple[int, ...]:
    """Return the epochs at which the pruner decides. Raises SpecError for a wrong answer of a user's pruner."""
    name, epochs = spec.search.pruner.name, spec.training.epochs
    problem = None
    try:
        rungs = tuple(policy.pruner.rungs(epochs))
    except (Exception, SystemExit) as error:
        if ":" not in name:
            raise
        problem = f"{name!r} cannot name its rungs ({type(error).__name__}: {error})"
    else:
        if not all(type(rung) is int and 0 < rung < epochs for rung in rungs) or list(rungs) != sorted(set(rungs)):
            problem = f"{name!r} returns the rungs {rungs}. They must be whole numbers from 1 to {epochs - 1}, rising"
    if problem is not None:
        raise SpecError(source, ("search", "pruner"), " ".join(problem.split()))
    return rungs


def _check_gpus(spec: StudySpec, places: AvailableSlots, slots: int, source: str) -> None:
    if spec.resources.autoscale:
        return
    if (places.device == "cuda" or spec.resources.ray_address is not None) and slots > places.slots:
        problem = f"found {slots}, but there are {places.slots} slots here"
        raise SpecError(source, ("resources", "slots"), problem)


def _check_is_limited(spec: StudySpec, price: Price, source: str) -> None:
    if price.usd_per_slot_hour == 0 and spec.budget.is_of_dollars_alone:
        problem = "the price of a slot is 0, so a budget in dollars would never be used up"
        raise SpecError(source, ("budget", "usd"), f"{problem}. Add budget.hours or budget.trials")


def _price(spec: StudySpec, places: AvailableSlots) -> Price:
    given = spec.resources.price_per_slot_hour
    if given == "auto":
        return price_of(places.device, places.device_name, spec.resources.cpus_per_rank)
    return Price(usd_per_slot_hour=float(given), source="resources.price_per_slot_hour")


def _warnings(spec: StudySpec, places: AvailableSlots, slots: int) -> tuple[str, ...]:
    if places.device == "cpu" and slots > places.slots and not spec.resources.autoscale:
        needed, there = slots * spec.resources.cpus_per_rank, places.slots * spec.resources.cpus_per_rank
        return (f"{slots} slots want {needed} CPUs, but this machine has {there}, so trials will be slower",)
    return ()


def _warnings_of_search(spec: StudySpec, rungs: Sequence[int]) -> tuple[str, ...]:
    found_odd = []
    if spec.search.learn_space:
        known, chosen = listed(spec.space.names() if spec.space else ()) or "empty", spec.search.chosen
        found_odd.append(_LEARNT.format(known, chosen.sampler, chosen.pruner.name))
    elif spec.space is not None and not len(spec.space) and spec.budget.trials != 1:
        found_odd.append("space: it has no parameter, so all trials are equal")
    if spec.search.pruner.name not in {"none", "auto"} and not rungs:
        epochs = spec.training.epochs
        found_odd.append(f"search.pruner: {spec.search.pruner.name} has no rung before epoch {epochs}: it never prunes")
    return tuple(found_odd)


def _warnings_of_metrics(spec: StudySpec, reported: Sequence[str]) -> tuple[str, ...]:
    """Warn about metrics that a function or a command will probably not report."""
    is_command = spec.is_command
    owner = "command" if is_command else "training function"
    known = {*reported, *CUMULATIVE_METRICS, *(() if is_command else MEASURED_OF_FUNCTIONS)}
    doubtful = {*ALWAYS_MEASURED} - {"train_loss", "val_loss"}  # libraries report these two losses
    named = [("objectives", one.metric) for one in spec.objectives]
    named += [("constraints", one.metric) for one in spec.constraints]
    return tuple(
        f"{section}: {metric} is measured only if the {owner} reports it"
        f"{f', whose source reports {listed(reported)}' if reported else ''}; a trial without it fails"
        for section, metric in named
        if metric not in known and (reported or metric in doubtful)
    )


def _warnings_of_function(spec: StudySpec) -> tuple[str, ...]:
    """Warn about options that a training function ignores, or follows only through a helper function."""
    given = {name: getattr(spec.training, name) for name in spec.training.model_fields_set}
    return tuple(
        f"training.{name}: a training function follows it only if it calls {helper}"
        if helper is not None
        else f"training.{name}: training functions ignore it"
        for name, helper in unheeded(given).items()
    )
