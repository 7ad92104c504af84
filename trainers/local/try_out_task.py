"""Tests a task in a separate process, because the controller does not import torch.

    echo '{"task": "digits", "task_options": {}, "python_path": [], "params": null}' |
        python -P -m trainers.local.try_out_task

prints {parameters, metrics, space, samples, error} as JSON; `error` is one line, or null. Given `examples` (parameters)
and `training` (a spec's section), it prints {counted, error}: see `trainers.model.network`.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.drawing import example_params
from trainers.commands.command import Command
from trainers.contract.task import (
    Task,
    baselines_of,
    declared_metrics,
    first_trials_of,
    model_of,
    parameters_of,
    space_of,
)
from trainers.contract.task_loading import load_task, load_trainable
from trainers.contract.training_function import TrainingFunction, reported_by, space_of_function
from trainers.contract.user_code import error_line
from trainers.protocol import OUR_METRICS, STDERR, TrainingError
from trainers.ranks.printed_output import divert_stdout

_SAMPLES = 8
MOST_SECONDS = 600  # seconds after which a counting process ends itself


def probe(
    task: str,
    task_options: Mapping[str, Any],
    python_path: Sequence[str],
    params: Mapping[str, Any] | None = None,
    *,
    by_module: bool = False,
) -> dict[str, Any]:
    """Build a task with data and model, and pass at most 8 validation samples through model, loss and metrics.

    Args:
        params: Parameters of the model; None draws them from the task's space, seeded.
        by_module: A whole model may exceed the memory: build it only if the task does not declare its metrics.

    Returns:
        The task's `parameters`, `metrics`, default `space` (may be null), `first_trials`, `baselines`, `samples` to
            train on (null for a stream), `has_schedule`, and `error` (one line, or null); results before an error are
            filled in. A training function or command is not run: its parameters and metrics are null, and `reported`
            has the names in a function's source.
    """
    answer: dict[str, Any] = {"parameters": [], "metrics": [], "space": None, "samples": 0, "error": None}
    try:
        found = load_trainable(task, task_options, python_path)
        if isinstance(found, TrainingFunction | Command):
            answer |= {"parameters": None, "metrics": None}
        if isinstance(found, TrainingFunction):
            space = space_of_function(found.function, sys.modules[task.partition(":")[0]])
            answer["space"] = None if space is None else space.to_dict()
            answer["reported"] = reported_by(found.function)
        if isinstance(found, TrainingFunction | Command):
            return answer
        _fill(answer, found, params, by_module=by_module)
    except Exception as error:  # noqa: BLE001 - any error of the user's code is the answer
        answer["error"] = _one_line(task, error)
    return answer


def counted(
    task: str,
    task_options: Mapping[str, Any],
    python_path: Sequence[str],
    examples: Sequence[Mapping[str, Any]],
    training: Mapping[str, Any],
) -> dict[str, Any]:
    """Count parameters and operations of `examples` at low CPU priority; return `counted` and `error`."""
    os.nice(19)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.alarm(MOST_SECONDS)  # the user's code may hang
    try:
        import torch

        from trainers.model.network import count

        torch.set_num_threads(1)
        return {"counted": count(load_task(task, task_options, python_path), examples, training), "error": None}
    except Exception as error:  # noqa: BLE001 - any error of the user's code is the answer
        return {"counted": [], "error": _one_line(task, error)}


def _one_line(task: str, error: Exception) -> str:
    if isinstance(error, TrainingError):
        return " ".join(str(error).split())
    return f"task {task!r}: {error_line(''.join(traceback.format_exception(error)))}"


def _fill(answer: dict[str, Any], task: Task, params: Mapping[str, Any] | None, *, by_module: bool) -> None:
    answer["parameters"] = list(parameters_of(task))
    answer["metrics"] = list(declared_metrics(task) or ())
    answer["baselines"] = baselines_of(task)
    space = space_of(task)
    if space is not None:
        answer["space"] = space.to_dict()
        params = example_params(space) if params is None else params
        answer["first_trials"] = [dict(one) for one in first_trials_of(task)]
    names, samples = _try_out(task, params or {}, by_module=by_module)
    measured = sorted(set(names) - OUR_METRICS)
    answer["samples"] = samples
    from trainers.model.optimizers import own_schedule

    answer["has_schedule"] = own_schedule(task, {}) is not None
    declared = declared_metrics(task)
    if declared is not None and sorted(declared) != measured:
        raise TrainingError(f"metric_names has {sorted(declared)}, but metrics() returns {measured}")
    answer["metrics"] = measured


def _try_out(task: Task, params: Mapping[str, Any], *, by_module: bool) -> tuple[Sequence[str], int | None]:
    import torch

    from trainers.data.samples import few_of, load_samples
    from trainers.data.seeds import derive, reseed
    from trainers.data.streams import StreamSamples
    from trainers.loop.evaluation import evaluation_sums, with_derived
    from trainers.loop.whole_set_metrics import WholeMetrics
    from trainers.model.init_by_module import ModuleInit
    from trainers.ranks.process_group import Group

    place = torch.device("cpu")
    training = load_samples(task, "train", params, place)
    validation = few_of(load_samples(task, "validation", params, place), _SAMPLES)
    samples = None if isinstance(training, StreamSamples) else len(training)
    if by_module:
        ModuleInit(task, params, 0)
        declared = declared_metrics(task)
        if declared is not None:
            return declared, samples
    reseed(derive("weights", 0))
    model = model_of(task, params)
    whole = WholeMetrics(task, params, place)
    few = range(min(_SAMPLES, len(validation)))
    names, _ = evaluation_sums(model, task, validation, few, _SAMPLES, whole=whole)
    of_whole = [name for name in whole.values(Group()) if not name.endswith(STDERR)]
    known = dict.fromkeys((*names, *of_whole, *whole.names, *OUR_METRICS), 1.0)
    return tuple(with_derived(task, known, params)), samples


def _end_after(parent: int) -> None:
    """End this process, and the process group that it leads, once its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Read a question as JSON from stdin, and print the answer as one line. All other output goes to stderr."""
    parent = os.getppid()
    question = json.load(sys.stdin)
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    with open(divert_stdout(), "w", encoding="utf-8") as answers:  # noqa: PTH123 - a descriptor
        of = (question["task"], question.get("task_options") or {}, question.get("python_path") or [])
        if "examples" in question:
            answer = counted(*of, question["examples"], question.get("training") or {})
        else:
            answer = probe(*of, question.get("params"), by_module=bool(question.get("by_module")))
        answers.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
