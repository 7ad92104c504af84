"""Checkpoints: all that a trial needs to continue as if it had never been interrupted.

    format      1, or 3 with shares
    model       state dict (averaged weights, if any)  rng       seed and scheme of all randomness
    optimizer   state dict                             position  {epoch, step} done, and the `StreamPlace` in a stream
    scheduler   state of the learning rate's rule      spec      essentials of the TrialSpec
    static      entries that never change              metrics   metrics of the epoch that ended
    engine      weights before averaging, loss scale and gradient statistics, if the training uses them
    function    state of a training function; `how_to_load` has lines of Python that extract its model
    part        sums and random generators of an unfinished epoch (`trainers.loop.epoch_parts`)
    shares      sizes and checksums of the ranks' files (`trainers.checkpoints.shared_checkpoint`)

Readers get whole tensors, even if ranks stored them in shares. A path may be a URL.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch
from torch import nn

from search_spaces.messages import one_line
from trainers.checkpoints.checkpoint_cache import DamagedObjectError
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import (
    NO_PARTS,
    MissingLibraryError,
    Parts,
    Save,
    absolute_folder,
    is_url,
    joined,
    name_of,
    tick,
)
from trainers.checkpoints.stored_tensors import (
    ShareFacts,
    ShareFile,
    StoredTensor,
    attach,
    check_shares,
    in_memory,
    shares_of,
    whole,
    with_whole_tensors,
)
from trainers.contract.task import Task, model_of
from trainers.contract.task_loading import TaskLoadError, built_in_tasks, load_task
from trainers.failures import CheckpointError, StorageError, classify, of_unread_file
from trainers.protocol import LostError, OutOfMemoryError, TrainingError, TrialSpec

T = TypeVar("T")
S = TypeVar("S")


def write_whole_file(path: str | Path, write: Callable[[BinaryIO], T], send: Callable[[Save], S]) -> tuple[T, S]:
    """Write a file with `write`, store it with `send`, and return both results. Errors as in `write_atomically`."""
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
            raise found from error  # the device that holds the tensors may have failed
        kind = StorageError if isinstance(cause, OSError | MissingLibraryError) else CheckpointError
        raise kind(f"cannot write {path}: {type(cause).__name__}: {cause}") from error
    return written[-1], sent


class _NotingWriter:
    """Keeps the error of a failed write, because torch hides it behind a RuntimeError."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._tick = file, tick()
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        self._tick()
        try:
            return self._file.write(data)
        except OSError as error:
            self.problem = self.problem or error
            raise

    def flush(self) -> None:
        """Do nothing, because the file is flushed once it is complete."""


class UntrustedFileError(TaskLoadError):
    """A file names user code. The message says how to permit running it."""


def task_of_file(
    path: str | Path, content: Mapping[str, Any], task: str | Task | None, python_path: Sequence[str]
) -> Task:
    """Return the task of a file's model. A user task is imported only if the caller names it.

    Args:
        content: Mapping with `task` (a name) and `task_options` (constructor arguments).
        task: Trusted task, or its name; None trusts only built-in tasks.

    Raises:
        UntrustedFileError: The file names a user task, and `task` is None.
        CheckpointError: The file's task or options are malformed.
        TaskLoadError: `task` cannot be found, or refuses the options.
    """
    if task is not None and not isinstance(task, str):
        return task
    named, options = content["task"], content["task_options"]
    if not isinstance(named, str) or not _is_plain(options):
        raise CheckpointError(f"{path} is damaged: its task is not a name, or its task_options are not plain values")
    if task is None and named not in built_in_tasks():
        shown = one_line(named[:100])
        raise UntrustedFileError(
            f"{path} needs the user task {shown!r}, whose code is not run without your permission. If you trust "
            f"the code, pass task={shown!r}"
        )
    return load_task(task or named, options, python_path)


def _is_plain(options: object) -> bool:
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        return False
    try:
        json.dumps(options)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


FORMAT, FORMAT_WITH_SHARES = 1, 3
_FORMAT_OF_OLD_SHARES = 2
HOW_NOT_WHAT = frozenset({
    "accumulate", "activation_checkpointing", "batch_per_rank", "bucket_mb", "checkpoint_async", "compile",
    "data_workers", "find_unused_parameters", "shard", "shard_offload", "world_size",
})  # fmt: skip
"""Parameters that change only how steps are computed, not their result. A resumed trial may change them."""

_NAME = re.compile(r"epoch-(\d+)(?:\.step-(\d+))?\.attempt-\d+\.pt")
_LATEST = "latest"  # name of the object that names the checkpoint to resume from
_ESSENTIALS = frozenset({"task", "task_options", "params", "seed"})
_KEYS = frozenset({"format", "model", "optimizer", "scheduler", "rng", "position", "static", "spec", "metrics"})


def checkpoint_path(spec: TrialSpec, epoch: int, step: int | None = None) -> str | None:
    """Return the path or URL of the checkpoint after `epoch`, or after `step` steps of it; None without a folder."""
    if spec.checkpoint_folder is None:
        return None
    part = "" if step is None else f".step-{step:08d}"
    name = f"epoch-{epoch:04d}{part}.attempt-{spec.attempt}.pt"
    return joined(absolute_folder(spec.checkpoint_folder, Path.cwd()), name)


def last_checkpoint(folder: Path) -> Path | None:
    """Return a folder's checkpoint with the most training, or None."""
    return max((path for path in folder.glob("epoch-*.pt") if _NAME.fullmatch(path.name)), key=_progress, default=None)


def latest_checkpoint(folder: str) -> str | None:
    """Return the checkpoint to resume from, or None; in an object store, as `note_latest` stored. May raise OSError."""
    if not is_url(folder):
        found = last_checkpoint(Path(folder))
        return None if found is None else str(found)
    with suppress(FileNotFoundError):
        name = place_of(folder).read_note(joined(folder, _LATEST)).strip()
        if _NAME.fullmatch(name):
            return joined(folder, name)
    return None


def note_latest(path: str) -> None:
    """Store the name of the checkpoint to resume from, in an object store only. Raises OSError."""
    if is_url(path):
        name = name_of(path)
        place_of(path).write_note(joined(path.removesuffix(f"/{name}"), _LATEST), name)


def _progress(path: Path) -> tuple[int, float]:
    named = _NAME.fullmatch(path.name)
    return epoch_of(path), int(named[2]) if named and named[2] else 0


def epoch_of(path: Path | str) -> int:
    """Return the number of complete epochs in a checkpoint's name, or 0."""
    named = _NAME.fullmatch(name_of(path))
    return int(named[1]) - bool(named[2]) if named else 0


def essentials(spec: TrialSpec) -> dict[str, Any]:
    """Return the fields that identify the trained model, as plain values."""
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
    """Save `content` at `path`, after its `parts` were written. Returns the size of all files in bytes.

    Readers never find half a file, even after a power loss.

    Raises:
        StorageError: The disk or the object store refuses the file.
        CheckpointError: A value in the content cannot be saved.
        OutOfMemoryError: The host has no memory left.
        LostError: The device of a tensor has failed.
    """

    def send(save: Save) -> int:
        return place_of(path).write(str(path), save, parts)

    _, size = write_whole_file(path, lambda file: torch.save(dict(content), cast("IO[bytes]", file)), send)
    return size


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return a checkpoint with all tensors on the CPU. Raises CheckpointError if it is missing or damaged."""
    content: dict[str, Any] = with_whole_tensors(open_checkpoint(path))
    return content


def open_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return a checkpoint whose tensors are mapped or `StoredTensor`s, not yet read. Errors as in `read_checkpoint`."""
    return open_with_shares(path)[0]


def open_with_shares(path: str | Path) -> tuple[dict[str, Any], list[tuple[ShareFile, ShareFacts]]]:
    """Return the content as `open_checkpoint` does, and the shares (none for a single file)."""
    content = read_plain(path)
    has_shares = content.get("format") == FORMAT_WITH_SHARES and "shares" in content
    if content.get("format") == _FORMAT_OF_OLD_SHARES:
        raise CheckpointError(
            f"{path} is a checkpoint in an old format that this version cannot read. Train the trial again"
        )
    if not content.keys() >= _KEYS or not (has_shares or content["format"] == FORMAT):
        raise CheckpointError(
            f"{path} is not a checkpoint of format {FORMAT}. Its keys are {sorted(map(str, content))}"
        )
    shares = shares_of(content, path) if has_shares else []
    attach(content, shares)
    _check_form(content, path)
    return content, shares


def check_checkpoint(path: str | Path) -> None:
    """Read all files of a checkpoint. Raises CheckpointError if any is missing or damaged."""
    content = read_plain(path, mapped=False, fresh=True)
    check_shares(path, content)


def _check_form(content: Mapping[str, Any], path: str | Path) -> None:
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
        raise CheckpointError(f"checkpoint {path} is damaged: unknown content in {', '.join(wrong)}")


def _is_named(value: object, kind: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, kind) for k, v in value.items())


def read_plain(path: str | Path, *, mapped: bool = True, fresh: bool = False) -> dict[str, Any]:
    """Return the dict saved at `path`, with tensors on the CPU. Executes no code from the file.

    Raises StorageError (disk or store fails), CheckpointError (missing or damaged file) or OutOfMemoryError.
    """
    with closing(_opened(str(path), fresh=fresh)) if is_url(path) else nullcontext(path) as source:
        try:
            mmap = mapped and not is_url(path)
            content = torch.load(source, map_location="cpu", mmap=mmap, weights_only=True)
        except Exception as error:  # a damaged file may raise any error
            raise of_unread_file(path, error) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def _opened(path: str, *, fresh: bool) -> BinaryIO:
    try:
        return place_of(path).open(path, fresh=fresh)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is missing") from error
    except DamagedObjectError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    except (OSError, MissingLibraryError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def check_belongs(content: Mapping[str, Any], spec: TrialSpec, path: str, effective_batch: int) -> None:
    """Raise CheckpointError unless a checkpoint has the trial's task, parameters, seed and effective batch."""
    mine, theirs = essentials(spec), content["spec"]
    for key in ("task", "params", "seed"):
        if _what(mine[key]) != _what(theirs[key]):
            raise CheckpointError(f"checkpoint {path} has {key} {theirs[key]!r}, but the trial has {mine[key]!r}")
    batch = content["static"].get("effective_batch", effective_batch)
    if batch != effective_batch:
        raise CheckpointError(
            f"checkpoint {path} was trained with {batch} samples a step, not {effective_batch}. Keep the product "
            "batch_per_rank x world_size x accumulate the same"
        )


def _what(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name not in HOW_NOT_WHAT}
    return value


def largest_difference(one: str | Path, other: str | Path) -> float:
    """Return the largest absolute difference between two checkpoints' weights. CheckpointError if the models differ.

    For a training function, all tensors of the state that it saved count as weights.
    """
    mine, theirs = (_weights_in(open_checkpoint(path)) for path in (one, other))
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        raise CheckpointError(f"checkpoints {one} and {other} have different models")
    differences = [
        (whole(value).double() - whole(theirs[name]).double()).abs().max()
        for name, value in mine.items()
        if value.numel()
    ]
    return float(max(differences, default=0.0))


def _weights_in(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if "function" not in content:
        weights: Mapping[str, Any] = content["model"]
        return weights
    found, waiting = dict[str, Any](), [("", content["function"])]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, Mapping | list | tuple):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting += [(f"{place}.{name}", one) for name, one in items]
        elif isinstance(value, torch.Tensor | StoredTensor):
            found[place] = value
    return found


def load_model(path: str | Path, task: str | Task | None = None, python_path: Sequence[str] = ()) -> nn.Module:
    """Return the model of a checkpoint, on the CPU and in evaluation mode.

    User tasks need `task`, because the name in a file is not trusted. Raises CheckpointError if the file cannot be
    read or its weights do not fit, and TaskLoadError if the task is missing or cannot be found.
    """
    content = open_checkpoint(path)
    spec = content["spec"]
    return rebuild(path, task_of_file(path, spec, task, python_path), spec["params"], content["model"])


def rebuild(path: str | Path, task: Task, params: Mapping[str, Any], weights: Mapping[str, Any]) -> nn.Module:
    """Return the task's model with `weights`, in evaluation mode. Raises CheckpointError if they do not fit."""
    with fits_the_model(path):
        model = model_of(task, params)
        model.load_state_dict(in_memory(weights))
    return model.eval()


@contextmanager
def fits_the_model(path: str | Path) -> Iterator[None]:
    """Turn errors of torch or the task, except device errors, into `CheckpointError`s about the file."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:
        if isinstance(found := classify(error), OutOfMemoryError | LostError):
            raise found from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"checkpoint {path} does not fit the model: {reason}") from error
