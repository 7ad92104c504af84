"""Exports a trained model as one file with weights, parameters and the code that loads it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, cast

from torch import nn

from search_spaces.untrusted_text import escaped
from trainers.checkpoints.checkpoint import open_checkpoint, read_plain, rebuild, task_of_file, write_atomically
from trainers.checkpoints.stored_tensors import mapped_whole, with_whole_tensors
from trainers.commands.kept_folder import ARE_OLD, FILES
from trainers.contract.task import Task
from trainers.failures import CheckpointError, StorageError
from trainers.functions.state_to_save import USUAL_NAME, line_that_loads

_KEYS = frozenset({"weights", "params", "task", "task_options"})


def how_to_load(path: str | Path, task: str, python_path: Sequence[str] = ()) -> str:
    """Return Python code that loads an exported model and evaluates it."""
    own = f", task={task!r}, python_path={list(python_path)!r}" if ":" in task else ""
    return f"""\
from trainers.loop.evaluation import evaluate
from trainers.checkpoints.model_export import load

model, task, params = load({str(path)!r}{own})
print(evaluate(model, task, params))  # as recorded: load_exported({str(path)!r})["metrics"]
"""


def _how_to_load_state(path: str | Path, state: Mapping[str, Any], taking: str | None) -> str:
    """Return code that extracts the model from a training function's state. `taking`: code stored in the checkpoint."""
    own = "" if taking is None else "# The following lines come from the checkpoint. Read them before you run them.\n"
    return f"""\
import torch

exported = torch.load({str(path)!r}, weights_only=True)
state = exported["state"]  # {", ".join(map(repr, state))}, as passed to trial.epochs
{own}{escaped(taking or _of_modules(state))}
"""


def _of_modules(state: Mapping[str, Any]) -> str:
    """Return code that extracts the model, for older checkpoints, which contain no such code."""
    name = USUAL_NAME if USUAL_NAME in state else next(iter(state), USUAL_NAME)
    return line_that_loads(name if name.isidentifier() else USUAL_NAME)


_OLD_FILES = (
    "# The command wrote these files before the epoch's second half, so they may be of an earlier epoch.\n"
    "# To keep an epoch's own files, it must save before it prints the epoch's metrics.\n"
)


def _how_to_load_files(path: str | Path, files: Mapping[str, Any], *, are_old: bool) -> str:
    """Return code that writes a command's files. Raises CheckpointError if a file is outside of their folder."""
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f"the checkpoint of {path} names the file {name!r}, which is outside of its folder")
    return f"""\
{_OLD_FILES if are_old else ""}import pathlib, torch

exported = torch.load({str(path)!r}, weights_only=True)
for name, content in exported["files"].items():  # {", ".join(map(repr, list(files)[:3]))}
    file = pathlib.Path("exported") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.numpy().tobytes())
"""


def _lines_that_load(
    out: str | Path, content: Mapping[str, Any], state: Mapping[str, Any] | None, place: str | Path | None
) -> str:
    path, spec = out if place is None else place, content["spec"]
    if FILES in content:
        return _how_to_load_files(path, content[FILES], are_old=content.get(ARE_OLD, False))
    if state is not None:
        return _how_to_load_state(path, state, content.get("how_to_load"))
    # With the file at another place, the task's code is at another place, too.
    return how_to_load(path, spec["task"], spec.get("python_path", []) if place is None else ["."])


def export_model(
    checkpoint: str | Path,
    out: str | Path,
    extra: Mapping[str, Any] | None = None,
    *,
    of_task: str | None = None,
    place: str | Path | None = None,
) -> dict[str, Any]:
    """Write the model of a checkpoint to `out`, and return the file's content without the weights.

    Sharded weights are first joined in a temporary file beside `out`. The loading code names `place` instead of `out`,
    if given. Raises CheckpointError if the checkpoint cannot be read or is not `of_task`, or `out` cannot be written.
    """
    content = open_checkpoint(checkpoint)
    spec = content["spec"]
    if of_task is not None and spec["task"] != of_task:
        raise CheckpointError(f"checkpoint {checkpoint} is of task {spec['task']!r}, not {of_task!r}")
    state, files = with_whole_tensors(content.get("function")), content.get(FILES)
    exported = {
        **({} if state is None else {"state": state}),
        **({} if files is None else {FILES: files}),
        "params": spec["params"],
        "task": spec["task"],
        "task_options": spec["task_options"],
        "python_path": spec.get("python_path", []),
        "spec": spec,
        "epoch": content["position"]["epoch"],
        "metrics": content["metrics"],
        "how_to_load": _lines_that_load(out, content, state, place),
        **(extra or {}),
    }
    target = Path(out).absolute()
    with weights_on_disk(content["model"], target) as weights:
        write_atomically({"weights": weights, **exported}, target)
    return exported


@contextmanager
def weights_on_disk(weights: Mapping[str, Any], out: Path) -> Iterator[Mapping[str, Any]]:
    """Yield whole weights, mapped from a temporary file beside `out`. Raises StorageError or CheckpointError."""
    try:
        with NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp") as scratch:
            whole = mapped_whole(weights, cast("BinaryIO", scratch))
            yield whole
    except OSError as error:
        raise StorageError(f"cannot write {out}: {type(error).__name__}: {error}") from error


def load_exported(path: str | Path) -> dict[str, Any]:
    """Return an exported file's content. Raises CheckpointError if it is missing, damaged or not an export."""
    content = read_plain(path)
    if not content.keys() >= _KEYS:
        raise CheckpointError(f"{path} is not an exported model. Its keys are {sorted(map(str, content))}")
    if not isinstance(content["params"], dict) or not isinstance(content["weights"], dict):
        raise CheckpointError(f"{path} is damaged: its params or weights are not mappings")
    return content


def load(
    path: str | Path, task: str | Task | None = None, python_path: Sequence[str] = ()
) -> tuple[nn.Module, Task, dict[str, Any]]:
    """Return an exported model in evaluation mode, its task and its parameters. Errors as in `load_model`."""
    content = load_exported(path)
    made = task_of_file(path, content, task, python_path)
    return rebuild(path, made, content["params"], content["weights"]), made, content["params"]
