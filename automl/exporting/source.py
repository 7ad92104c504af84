"""Loads a checkpoint's model for an export: network, form of rows, meaning of outputs."""

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from automl.standalone.batches import DTYPES
from trainers.checkpoints.checkpoint import read_checkpoint, rebuild
from trainers.commands.command import Command
from trainers.contract.task import BaseTask, Task
from trainers.contract.task_loading import load_trainable
from trainers.contract.training_function import TrainingFunction
from trainers.data.samples import TensorSamples, few_of, load_samples
from trainers.data.streams import StreamSamples
from trainers.failures import CheckpointError
from trainers.model.traced_program import Call, example_call, model_of_function
from trainers.protocol import TaskError, TrialSpec

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model to export, with its task (None for a training function) and data.

    Attributes:
        rows: Form of rows, see `automl.standalone`; None if unknown.
        answers: Meaning of outputs, see `automl.standalone.answers`.
        data: Facts of the training data; `out_of_fold` if metrics are of models that had not seen the row.
        content: The checkpoint without weights.
    """

    call: Call
    rows: Mapping[str, Any] | None
    answers: Mapping[str, Any]
    data: Mapping[str, Any]
    content: Mapping[str, Any]
    task: Task | None = None

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens of a text; None for other rows."""
        return int(self.rows["longest"]) if self.rows is not None and self.rows["kind"] == "text" else None


def source_of(
    checkpoint: str, named: str, python_path: tuple[str, ...], model: str | None = None, *, like: Source | None = None
) -> Source:
    """Load the model of a checkpoint of the user's own study.

    Args:
        named: Name of the task. The checkpoint's own name is not trusted.
        like: Another model of the study, whose task and data are reused for equal options.

    Raises:
        TaskError: The task can no longer be built, or does not train a torch model.
        CheckpointError: The checkpoint is unreadable, or does not fit the task.
    """
    content = read_checkpoint(checkpoint)
    spec = content["spec"]
    if spec["task"] != named:
        raise CheckpointError(f"the checkpoint {checkpoint} belongs to the task {spec['task']!r}, not to {named!r}")
    shared = None if like is None or like.content["spec"]["task_options"] != spec["task_options"] else like.task
    task = load_trainable(named, spec["task_options"], python_path) if shared is None else copy.copy(shared)
    if isinstance(task, Command):
        raise TaskError(
            "the task is a command, whose model only its own program can read. Pass --format weights to copy the "
            "model's files"
        )
    rest = {name: value for name, value in content.items() if name in ("spec", "position", "metrics", "static")}
    if isinstance(task, TrainingFunction):
        names = ("study", "trial", "task", "task_options", "params", "training", "seed")
        one_rank = TrialSpec(**{name: spec[name] for name in names}, python_path=python_path)
        call = model_of_function(task, one_rank, content, checkpoint, model)
        return Source(call=call, rows=_rows(task, call), answers={"kind": "array"}, data={}, content=rest)
    if model is not None:
        raise TaskError(f"--model {model}: only training functions have several models. Leave --model out")
    params = spec["params"]
    network = rebuild(checkpoint, task, params, content["model"])
    samples = few_of(load_samples(task, "validation", params, _CPU), 2)
    inputs, _ = next(iter(samples.batches([torch.arange(min(2, len(samples)))])))
    new_rows = getattr(task, "new_rows", None)  # leaves out columns that only training and validation rows have
    rows = inputs if new_rows is None else new_rows(inputs)
    call = example_call(network, (rows,))
    answers = _answers(task, call, content["metrics"])
    data = _data(task, params) if shared is None else {}
    if isinstance(inputs, Tensor) and isinstance(rows, Tensor) and rows.shape != inputs.shape:
        data["out_of_fold"] = True  # a column names the model of the trial that has not seen the row
    return Source(call=call, rows=_rows(task, call), answers=answers, data=data, content=rest, task=task)


def with_data(source: Source) -> Source:
    """Return the source with all facts of its training data."""
    assert source.task is not None  # noqa: S101 - the caller has checked
    return replace(source, data=_data(source.task, source.content["spec"]["params"]) | dict(source.data))


def _rows(task: Task | TrainingFunction, call: Call) -> dict[str, Any] | None:
    """Return the form of rows: the task's own form, or numbers for one tensor; None for several tensors."""
    if not isinstance(call.outputs(), Tensor):
        return None
    if hasattr(task, "preprocessing"):
        return _as_stored(task.preprocessing())
    if call.kwargs or len(call.args) != 1 or not isinstance(call.args[0], Tensor):
        return None
    dtype = str(call.args[0].dtype).removeprefix("torch.")
    return {"kind": "array", "dtype": dtype, "shape": list(call.args[0].shape[1:])} if dtype in DTYPES else None


def _as_stored(form: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a form to a manifest's types, with lists for tuples, for comparison with stored forms."""
    stored: dict[str, Any] = json.loads(json.dumps(form))
    return stored


def _answers(task: Task, call: Call, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the form of predictions: the task's own form, else classes if the task evaluates outputs as classes."""
    if hasattr(task, "postprocessing"):
        answers = _as_stored(task.postprocessing())
        error = answers.pop("error", None)
        return answers if error is None else answers | {"mse": metrics.get(error)}
    outputs = call.outputs()
    is_classifier = getattr(type(task), "metrics", None) is BaseTask.metrics
    if not is_classifier or not isinstance(outputs, Tensor) or outputs.dim() != 2:
        return {"kind": "array"}
    names = getattr(task, "classes", None) or range(outputs.shape[1])
    return {"kind": "classes", "labels": list(map(str, names))}


def _data(task: Task, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of training samples, and a checksum if they are in memory."""
    samples = load_samples(task, "train", params, _CPU)
    if isinstance(samples, StreamSamples):
        return {}
    found: dict[str, Any] = {"training_samples": len(samples)}
    if isinstance(samples, TensorSamples):
        digest = hashlib.sha256()
        for leaf in pytree.tree_leaves(next(iter(samples.batches([torch.arange(len(samples))])))):
            digest.update(leaf.contiguous().numpy().tobytes())
        found["sha256"] = digest.hexdigest()
    return found
