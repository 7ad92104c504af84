"""Asks a task for its parameters and metrics in another process, because a controller never runs a user's task."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_spaces.drawing import example_params
from search_spaces.space import Space
from studies.spec.metric_names import quality_metric
from studies.spec.spec_errors import SpecError
from trainers.commands.command import COMMAND, Command, missing_program, search_path
from trainers.contract.task import Params, baselines_of, declared_metrics, first_trials_of, parameters_of, space_of
from trainers.contract.task_loading import load_task
from trainers.protocol import OUR_METRICS, TaskError

PROBE = (sys.executable, "-P", "-m", "trainers.local.try_out_task")
"""Command of the process that answers questions about a task."""
PROBE_SECONDS = 600.0

MEASURED_OF_FUNCTIONS = ("model_parameters", "peak_memory_bytes")
"""Metrics of a training function that it need not report: the first needs a prepared model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFacts:
    """Properties of a task.

    Attributes:
        parameters: Its parameters besides the trainer's. None for a training function or a command, which take any.
        metrics: Metrics that it measures. None for a training function or a command, which report any.
        space: Its own search space, or None.
        reported: Metrics found in the source of a training function; it may report others.
        baselines: Baselines of its models, as `trainers.contract.task.baselines_of` returns them.
        data_check: What a built-in task found in its files: `findings`, one line each, and `columns`.
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

    A built-in task that declares its metrics answers in this process, without torch. Other tasks are tried out in
    another process: they build data and a model, and measure a few samples.

    Args:
        task: Name of a built-in task, or `module:Class`.

    Raises:
        SpecError: The task cannot be loaded, or fails when it is tried out.
    """
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


def _facts_of_command(options: Mapping[str, Any], source: str, folder: Path) -> TaskFacts:
    """Check that a command can be run here. Its parameters and metrics are unknown before it runs."""
    problem = missing_program(Command.of(options), folder, search_path())
    if problem is not None:
        raise SpecError(source, ("task", COMMAND), problem)
    return TaskFacts(parameters=None, metrics=None, space=None)


def ask(question: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Call `trainers.local.try_out_task` in its own process. SpecError if it fails, ends or exceeds `PROBE_SECONDS`."""
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
    """Return the exit of the trial process in words, with the last line that it printed."""
    code = done.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    last = done.stderr.strip().splitlines()[-1:]
    return ": ".join([f"{how} while it was tried out", *last])


def quality_of(facts: TaskFacts) -> str:
    """Return the metric of a task to optimize; for a training function a reported metric, validation metrics first."""
    reported = [name for name in facts.reported if name not in OUR_METRICS]
    reported = reported or [name for name in ("val_loss", "train_loss") if name in facts.reported]
    of_validation = sorted(reported, key=lambda name: not name.startswith("val"))
    return quality_metric(facts.metrics or of_validation or ("val_error",))
