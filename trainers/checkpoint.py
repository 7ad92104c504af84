"""Checkpoints: all that a trial needs to go on as if it had never stopped, in one file that is there wholly or not.

format      1
model       state dict                  rng       seed and scheme: every epoch's randomness follows from them
optimizer   state dict                  position  {epoch, step}: epochs and optimizer steps done
scheduler   the learning rate's rule    spec      the essentials of the TrialSpec
static      what stays the same         metrics   those of the epoch that ended
engine      weights before averaging, loss scale, gradient statistics: where the training has them

Weights and optimizer state are whole, however they were shared out. `model` has the averaged weights if there are any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainers.errors import CheckpointError
from trainers.protocol import TrialSpec
from trainers.task import load_task, model_of

FORMAT = 1
HOW_NOT_WHAT = frozenset(
    {
        "accumulate",
        "activation_checkpointing",
        "batch_per_rank",
        "bucket_mb",
        "compile",
        "data_workers",
        "find_unused_parameters",
        "shard",
        "world_size",
    }
)
"""Parameters that spread the same steps over other ranks, passes or memory: a trial may go on with others."""

_NAME = re.compile(r"epoch-(\d+)\.attempt-\d+\.pt")
_KEYS = frozenset({"format", "model", "optimizer", "scheduler", "rng", "position", "static", "spec", "metrics"})


def checkpoint_path(spec: TrialSpec, epoch: int) -> Path | None:
    """Return where the checkpoint of an epoch goes, or None when the trial writes none."""
    if spec.checkpoint_folder is None:
        return None
    return Path(spec.checkpoint_folder).absolute() / f"epoch-{epoch:04d}.attempt-{spec.attempt}.pt"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the latest epoch in a folder, or None if there is none."""
    return max((path for path in folder.glob("epoch-*.pt") if _NAME.fullmatch(path.name)), key=epoch_of, default=None)


def epoch_of(path: Path) -> int:
    """Return the epoch that a checkpoint's name says, 0 if it says none."""
    named = _NAME.fullmatch(path.name)
    return int(named[1]) if named else 0


def essentials(spec: TrialSpec) -> dict[str, Any]:
    """Return what of a TrialSpec says which model this is, as plain values."""
    return {
        "study": spec.study,
        "trial": spec.trial,
        "attempt": spec.attempt,
        "task": spec.task,
        "task_options": dict(spec.task_options),
        "python_path": list(spec.python_path),
        "params": dict(spec.params),
        "training": dict(spec.training),
        "world_size": spec.world_size,
        "seed": spec.seed,
    }


def write_atomically(content: Mapping[str, Any], path: Path) -> None:
    """Save `content` at `path` so that a reader, or a machine that lost its power, never finds half a file.

    Raises:
        CheckpointError: The disk or the folder does not allow it.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            torch.save(dict(content), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {type(error).__name__}: {error}") from error


def read_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the content of a checkpoint, its tensors on `device`.

    Raises:
        CheckpointError: The file is missing, damaged, or no checkpoint of this format.
    """
    content = read_plain(path, device)
    if not content.keys() >= _KEYS or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of format {FORMAT}; it holds {sorted(content)}")
    return content


def read_plain(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the dict saved at `path`; nothing in the file is executed.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is missing") from error
    except Exception as error:  # a damaged file raises whatever its first wrong byte leads to
        raise CheckpointError(f"checkpoint {path} is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def check_belongs(content: Mapping[str, Any], spec: TrialSpec, path: str, effective_batch: int) -> None:
    """Refuse a checkpoint of another configuration.

    Raises:
        CheckpointError: Task, parameters or seed are not the trial's, or a step had another number of samples.
    """
    mine, theirs = essentials(spec), content["spec"]
    for key in ("task", "params", "seed"):
        if _what(mine[key]) != _what(theirs[key]):
            raise CheckpointError(f"checkpoint {path} is of {key} {theirs[key]!r}, not {mine[key]!r}")
    batch = content["static"].get("effective_batch", effective_batch)
    if batch != effective_batch:
        raise CheckpointError(
            f"checkpoint {path} is of {batch} samples a step, not {effective_batch}: batch_per_rank x world_size x "
            "accumulate must stay the same"
        )


def _what(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name not in HOW_NOT_WHAT}
    return value


def largest_difference(one: str | Path, other: str | Path) -> float:
    """Return the largest absolute difference between the weights of two checkpoints of the same model.

    Raises:
        CheckpointError: A file cannot be read, or they are of different models.
    """
    mine, theirs = (read_checkpoint(path)["model"] for path in (one, other))
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        raise CheckpointError(f"checkpoints {one} and {other} are of different models")
    differences = [
        (value.double() - theirs[name].double()).abs().max() for name, value in mine.items() if value.numel()
    ]
    return float(max(differences, default=0.0))


def load_model(path: str | Path) -> nn.Module:
    """Return the model of a checkpoint, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: The file cannot be read, or its weights do not fit the task's model any more.
        TaskLoadError: The task cannot be found.
    """
    content = read_checkpoint(path)
    spec = content["spec"]
    return rebuild(spec["task"], spec["task_options"], spec["python_path"], spec["params"], content["model"])


def rebuild(
    task: str, options: Mapping[str, Any], python_path: list[str], params: Mapping[str, Any], weights: Mapping[str, Any]
) -> nn.Module:
    """Return the task's model for `params` with `weights` in it, in evaluation mode."""
    model = model_of(load_task(task, options, python_path), params)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights do not fit the model of task {task!r}: {error}") from error
    return model.eval()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
