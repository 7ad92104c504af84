"""A trained model as one file that its owner can take away: weights, parameters, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from trainers.checkpoint import read_checkpoint, read_plain, rebuild, write_atomically
from trainers.errors import CheckpointError
from trainers.task import Task, load_task

_KEYS = frozenset({"weights", "params", "task", "task_options", "python_path"})


def how_to_load(path: str | Path) -> str:
    """Return the lines of Python that rebuild the model from an exported file, and its validation metrics."""
    return f"""\
import torch
from trainers.evaluate import evaluate
from trainers.task import load_task

exported = torch.load({str(path)!r}, weights_only=True)
task = load_task(exported["task"], exported["task_options"], exported["python_path"])
model = task.model(exported["params"])
model.load_state_dict(exported["weights"])
model.eval()
print(evaluate(model, task, exported["params"]))  # as recorded: exported["metrics"]
"""


def export_model(checkpoint: str | Path, out: str | Path, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write the model of a checkpoint to `out` and return what was written.

    Args:
        checkpoint: A milestone's file.
        out: The file to write, replaced if it is there.
        extra: More plain values to put beside the model, such as the study's spec.

    Raises:
        CheckpointError: The checkpoint cannot be read, or `out` cannot be written.
    """
    content = read_checkpoint(checkpoint)
    spec = content["spec"]
    exported = {
        "weights": content["model"],
        "params": spec["params"],
        "task": spec["task"],
        "task_options": spec["task_options"],
        "python_path": spec["python_path"],
        "spec": spec,
        "epoch": content["position"]["epoch"],
        "metrics": content["metrics"],
        "how_to_load": how_to_load(out),
        **(extra or {}),
    }
    write_atomically(exported, Path(out).absolute())
    return exported


def load_exported(path: str | Path) -> dict[str, Any]:
    """Return the content of an exported file.

    Raises:
        CheckpointError: The file is missing, damaged, or was not written by `export_model`.
    """
    content = read_plain(path)
    if not content.keys() >= _KEYS:
        raise CheckpointError(f"{path} is no exported model; it holds {sorted(content)}")
    return content


def load(path: str | Path) -> tuple[nn.Module, Task, dict[str, Any]]:
    """Return an exported model in evaluation mode, its task and its parameters.

    Raises:
        CheckpointError: The file cannot be read, or its weights do not fit the task's model any more.
        TaskLoadError: The task cannot be found.
    """
    content = load_exported(path)
    options, python_path, params = content["task_options"], content["python_path"], content["params"]
    task = load_task(content["task"], options, python_path)
    return rebuild(content["task"], options, python_path, params, content["weights"]), task, params
