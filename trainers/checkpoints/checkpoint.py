"""Checkpoints: all that a trial needs to go on as if it had never stopped; they are there wholly or not at all.

format      1; 3 if it has shares
model       state dict                  rng       seed and scheme: every epoch's randomness follows from them
optimizer   state dict                  position  {epoch, step}: whole epochs and optimizer steps done, and where
                                                  in a stream (`trainers.data.sample_order.StreamPlace`)
scheduler   the learning rate's rule    spec      the essentials of the TrialSpec
static      what stays the same         metrics   those of the epoch that ended
engine      weights before averaging, loss scale, gradient statistics: where the training has them
function    what a training function handed over; `how_to_load` has the lines that take its model out of it
part        of an epoch that was saved before its end (`trainers.loop.epoch_parts`): its sums and random generators
shares      what ranks wrote beside it (`trainers.checkpoints.shared_checkpoint`): sizes and checksums of their files

`model` has the averaged weights if there are any. Weights and optimizer state are those of the whole model, however
they were shared out: tensors that several ranks hold lie in the ranks' shares, of which readers see whole tensors.
Where checkpoints are, `trainers.checkpoints.checkpoint_stores` knows: a path may be a URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch
from torch import nn

from search_spaces.wording import one_line
from trainers.checkpoints.checkpoint_cache import DamagedObjectError
from trainers.checkpoints.checkpoint_place import NO_PARTS, Parts, Save, tick
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, absolute_folder, is_url, joined, name_of
from trainers.checkpoints.stored_tensors import (
    ShareFacts,
    ShareFile,
    StoredTensor,
    attach,
    check_shares,
    in_memory,
    shares_of,
    whole,
)
from trainers.contract.task import Task, model_of
from trainers.contract.task_loading import TaskLoadError, built_in_tasks, load_task
from trainers.failures import CheckpointError, StorageError, classify, of_unread_file
from trainers.protocol import LostError, OutOfMemoryError, TrainingError, TrialSpec

T = TypeVar("T")
S = TypeVar("S")


def write_whole_file(path: str | Path, write: Callable[[BinaryIO], T], send: Callable[[Save], S]) -> tuple[T, S]:
    """Let `write` write a file that is then at `path`.

    Raises:
        StorageError: The disk, the folder or the object store does not allow it.
        CheckpointError: Something in the content cannot be saved.
        OutOfMemoryError: The host has no memory for what is written.
        LostError: The device that holds a tensor has failed.
    """
    noting: _NotingWriter | None = None
    written: list[T] = []

    def save(file: BinaryIO) -> None:
        nonlocal noting
        noting = _NotingWriter(file)
        written.append(write(cast("BinaryIO", noting)))

    try:
        sent = send(save)
    except (OSError, RuntimeError, MissingLibraryError) as error:
        cause = noting.problem if noting is not None and noting.problem is not None else error
        if isinstance(found := classify(cause), OutOfMemoryError | LostError):
            raise found from error  # tensors come from a device, which may fail meanwhile
        kind = StorageError if isinstance(cause, OSError | MissingLibraryError) else CheckpointError
        raise kind(f"cannot write {path}: {type(cause).__name__}: {cause}") from error
    return written[-1], sent


class _NotingWriter:
    """A file that remembers why it could not be written, which torch turns into a RuntimeError of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._tick = file, tick()
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, or what has a buffer of them, to the file."""
        self._tick()
        try:
            return self._file.write(data)
        except OSError as error:
            self.problem = self.problem or error
            raise

    def flush(self) -> None:
        """Do nothing: the file is flushed once it is whole."""


class UntrustedFileError(TaskLoadError):
    """A file names code of somebody's own; the message says how the caller allows it."""


def task_of_file(
    path: str | Path, content: Mapping[str, Any], task: str | Task | None, python_path: Sequence[str]
) -> Task:
    """Return the task of a file's model; nothing is imported that only the file names.

    Args:
        content: What the file says: `task`, its name, and `task_options`, its constructor's arguments.
        task: The task, or its name, in which the caller trusts; None trusts in the built-in tasks only.
        python_path: Folders in which the caller has its own tasks looked for; those of the file are not used.

    Raises:
        UntrustedFileError: The file names a task that is not built in, and the caller names none.
        CheckpointError: The file's task or options have not the form that they are written in.
        TaskLoadError: The caller's task cannot be found, or does not take the options.
    """
    if task is not None and not isinstance(task, str):
        return task
    named, options = content["task"], content["task_options"]
    if not isinstance(named, str) or not _is_plain(options):
        raise CheckpointError(f"{path} is damaged: its task or task_options have another form than any that is written")
    if task is None and named not in built_in_tasks():
        shown = one_line(named[:100])
        raise UntrustedFileError(
            f"{path} names the task {shown!r}, which is code that this program does not know; if it is yours, name it: "
            f"task={shown!r}"
        )
    return load_task(task or named, options, python_path)


def _is_plain(options: object) -> bool:
    """Whether options are a mapping of texts to what JSON can hold."""
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        return False
    try:
        json.dumps(options)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


FORMAT, FORMAT_WITH_SHARES = 1, 3
_FORMAT_OF_OLD_SHARES = 2
HOW_NOT_WHAT = frozenset(
    {
        "accumulate",
        "activation_checkpointing",
        "batch_per_rank",
        "bucket_mb",
        "checkpoint_async",
        "compile",
        "data_workers",
        "find_unused_parameters",
        "shard",
        "shard_offload",
        "world_size",
    }
)
"""Parameters that spread the same steps over other ranks, passes or memory: a trial may go on with others."""

_NAME = re.compile(r"epoch-(\d+)(?:\.step-(\d+))?\.attempt-\d+\.pt")
_LATEST = "latest"
"""Name of the object with the name of the checkpoint to go on from."""
_ESSENTIALS = frozenset({"task", "task_options", "params", "seed"})
_KEYS = frozenset({"format", "model", "optimizer", "scheduler", "rng", "position", "static", "spec", "metrics"})


def checkpoint_path(spec: TrialSpec, epoch: int, step: int | None = None) -> str | None:
    """Return the path or URL of the checkpoint of an epoch, or of a part of it; None when the trial writes none.

    Args:
        step: Number of optimizer steps done, where the epoch has not ended.
    """
    if spec.checkpoint_folder is None:
        return None
    part = "" if step is None else f".step-{step:08d}"
    name = f"epoch-{epoch:04d}{part}.attempt-{spec.attempt}.pt"
    return joined(absolute_folder(spec.checkpoint_folder, Path.cwd()), name)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint in a folder with which most is trained, or None if there is none."""
    return max((path for path in folder.glob("epoch-*.pt") if _NAME.fullmatch(path.name)), key=_progress, default=None)


def latest_checkpoint(folder: str) -> str | None:
    """Return the checkpoint to go on from in the folder of a single training, or None if there is none.

    An object store is not asked for a list, which may lag behind, but for what `note_latest` has written.

    Raises:
        OSError: The object store does not answer.
    """
    if not is_url(folder):
        found = last_checkpoint(Path(folder))
        return None if found is None else str(found)
    with suppress(FileNotFoundError):
        name = place_of(folder).read_note(joined(folder, _LATEST)).strip()
        if _NAME.fullmatch(name):
            return joined(folder, name)
    return None


def note_latest(path: str) -> None:
    """Note in an object store that this checkpoint is the one to go on from; a folder needs no note.

    Raises:
        OSError: The store takes nothing.
    """
    if is_url(path):
        name = name_of(path)
        place_of(path).write_note(joined(path.removesuffix(f"/{name}"), _LATEST), name)


def _progress(path: Path) -> tuple[int, float]:
    """Return the epochs done and the steps done, as far as they are of an epoch that has not ended."""
    named = _NAME.fullmatch(path.name)
    return epoch_of(path), int(named[2]) if named and named[2] else 0


def epoch_of(path: Path | str) -> int:
    """Return the number of whole epochs that a checkpoint's name says, 0 if it says none."""
    named = _NAME.fullmatch(name_of(path))
    return int(named[1]) - bool(named[2]) if named else 0


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


def write_atomically(content: Mapping[str, Any], path: str | Path, parts: Parts = NO_PARTS) -> int:
    """Save `content` at `path` so that a reader, or a machine that lost its power, never finds half a file.

    Args:
        parts: What other files of the checkpoint hold, which are written already.

    Returns:
        Size of the file in bytes, that of its parts included.

    Raises:
        StorageError: The disk, the folder or the object store does not allow it.
        CheckpointError: Something in the content cannot be saved.
    """

    def send(save: Save) -> int:
        return place_of(path).write(str(path), save, parts)

    _, size = write_whole_file(path, lambda file: torch.save(dict(content), cast("IO[bytes]", file)), send)
    return size


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint with all its tensors, on the CPU.

    Raises:
        CheckpointError: A file is missing, damaged, or no checkpoint of these formats.
    """
    return {name: _all_whole(value) for name, value in open_checkpoint(path).items()}


def open_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint without reading its tensors yet.

    Those of the main file are mapped from the disk; those of shares are `StoredTensor`, of which rows can be read.

    Raises:
        CheckpointError: A file is missing, damaged, or no checkpoint of these formats.
    """
    return open_with_shares(path)[0]


def open_with_shares(path: str | Path) -> tuple[dict[str, Any], list[tuple[ShareFile, ShareFacts]]]:
    """Return the content of a checkpoint as `open_checkpoint` does, with its shares, none where it has one file.

    Raises:
        CheckpointError: A file is missing, damaged, or no checkpoint of these formats.
    """
    content = read_plain(path)
    has_shares = content.get("format") == FORMAT_WITH_SHARES and "shares" in content
    if content.get("format") == _FORMAT_OF_OLD_SHARES:
        raise CheckpointError(f"{path} has shares of a format that is no longer read: train the trial anew")
    if not content.keys() >= _KEYS or not (has_shares or content["format"] == FORMAT):
        raise CheckpointError(f"{path} is no checkpoint of format {FORMAT}; it holds {sorted(map(str, content))}")
    shares = shares_of(content, path) if has_shares else []
    attach(content, shares)
    _check_form(content, path)
    return content, shares


def check_checkpoint(path: str | Path) -> None:
    """Read all files of a checkpoint, each wholly.

    Raises:
        CheckpointError: One of them is missing or damaged.
    """
    content = read_plain(path, mapped=False, fresh=True)
    check_shares(path, content)


def _all_whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _all_whole(one) for name, one in value.items()}
    return whole(value) if isinstance(value, StoredTensor) else value


def _check_form(content: Mapping[str, Any], path: str | Path) -> None:
    """Refuse a checkpoint whose parts have not the form in which they are written: anybody may have made the file."""
    spec, position, static, metrics = (content[name] for name in ("spec", "position", "static", "metrics"))
    good = {
        "model": _is_named(content["model"], torch.Tensor | StoredTensor),
        "optimizer": isinstance(content["optimizer"], dict),
        "position": _is_named(position, int) and position.keys() >= {"epoch", "step"} and min(position.values()) >= 0,
        "static": _is_named(static, int | float) and "latency_ms" in static,
        "metrics": _is_named(metrics, int | float),
        "engine": _is_named(content.get("engine", {}), object),
        "part": _is_named(content.get("part", {}), object),
        "spec": _is_named(spec, object) and spec.keys() >= _ESSENTIALS and _is_named(spec["params"], object),
    }
    wrong = [name for name, is_good in good.items() if not is_good]
    if wrong:
        raise CheckpointError(f"checkpoint {path} is damaged: {', '.join(wrong)} of another form than is written")


def _is_named(value: object, kind: Any) -> bool:
    """Whether a value is a mapping of texts to values of a kind."""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, kind) for k, v in value.items())


def read_plain(path: str | Path, *, mapped: bool = True, fresh: bool = False) -> dict[str, Any]:
    """Return the dict saved at `path`, its tensors on the CPU; nothing in the file is executed.

    Raises:
        StorageError: The disk or the object store does not answer.
        CheckpointError: The file is missing or damaged.
        OutOfMemoryError: There is no memory left for it.
    """
    with closing(_opened(str(path), fresh=fresh)) if is_url(path) else nullcontext(path) as source:
        try:
            mmap = mapped and not is_url(path)
            content = torch.load(source, map_location="cpu", mmap=mmap, weights_only=True)
        except Exception as error:  # a damaged file raises whatever its first wrong byte leads to
            raise of_unread_file(path, error) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def _opened(path: str, *, fresh: bool) -> BinaryIO:
    """Open a checkpoint of an object store; errors as of `read_plain`."""
    try:
        return place_of(path).open(path, fresh=fresh)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is missing") from error
    except DamagedObjectError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    except (OSError, MissingLibraryError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


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
    mine, theirs = (open_checkpoint(path)["model"] for path in (one, other))
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        raise CheckpointError(f"checkpoints {one} and {other} are of different models")
    differences = [
        (whole(value).double() - whole(theirs[name]).double()).abs().max()
        for name, value in mine.items()
        if value.numel()
    ]
    return float(max(differences, default=0.0))


def load_model(path: str | Path, task: str | Task | None = None, python_path: Sequence[str] = ()) -> nn.Module:
    """Return the model of a checkpoint, on the CPU and in evaluation mode.

    Args:
        task: The task of the model, or its name; needed for a task of one's own, since a file's word is not trusted.

    Raises:
        CheckpointError: The file cannot be read, or its weights do not fit the task's model any more.
        TaskLoadError: The task cannot be found, or only the file names it.
    """
    content = open_checkpoint(path)
    spec = content["spec"]
    return rebuild(path, task_of_file(path, spec, task, python_path), spec["params"], content["model"])


def rebuild(path: str | Path, task: Task, params: Mapping[str, Any], weights: Mapping[str, Any]) -> nn.Module:
    """Return the task's model for `params` with `weights` in it, in evaluation mode.

    Raises:
        CheckpointError: The weights of the file do not fit the model.
    """
    with fits_the_model(path):
        model = model_of(task, params)
        model.load_state_dict(in_memory(weights))
    return model.eval()


@contextmanager
def fits_the_model(path: str | Path) -> Iterator[None]:
    """Turn whatever a file's content leads to, inside torch or the task, into a `CheckpointError`.

    A device without memory, or one that is lost, says nothing about the file.
    """
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:
        if isinstance(found := classify(error), OutOfMemoryError | LostError):
            raise found from error
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"checkpoint {path} does not fit the model: {said}") from error
