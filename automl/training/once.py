"""One DDP training without a study (`automl train`), in processes of its own or under torchrun."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.launching.outputs import check_folder
from automl.signals import draining_signals
from automl.training.lines import summary_lines
from automl.training.request import Asked, asked_for, check_backend
from search_spaces.wording import install_command
from studies.control.deleting import delete_file
from studies.money.ledger import cost_nano_usd
from studies.records import NANO
from studies.spec.errors import SpecError
from trainers.checkpoint_urls import absolute_folder
from trainers.protocol import OUR_METRICS, EpochPart, Measurement, TrialSpec

if TYPE_CHECKING:
    from automl.training.mlflow_run import MlflowRun, Tracking
    from trainers.group_options import GroupOptions
    from trainers.local_rank import Draining, RankFacts
    from trainers.rank_place import Presence
    from trainers.tensorboard import TensorBoard
    from trainers.torch_profile import Profile

_LOSSES = ("train_loss", "val_loss")
_TASK_ENDS = "a checkpoint is written within some seconds; --resume goes on"
_FUNCTION_ENDS = "the epoch ends, and what the function handed over is written; --resume goes on"


@dataclass(frozen=True, kw_only=True, slots=True)
class Keeping:
    """The files that a training writes, and the checkpoint that it continues from.

    Attributes:
        checkpoints: Path or URL of the folder for the latest checkpoint; None keeps none.
        every_seconds: Least seconds between two checkpoints, which are written at the ends of epochs, and within those
            that take longer; the last epoch always writes one.
        resume: Whether to continue from the checkpoint in the folder, if there is one.
        trace: File for the trace of some profiled steps; None profiles nothing.
        tensorboard: Folder for TensorBoard's files; None writes none.
        mlflow: Tracking URI of MLflow; None logs nothing there.
        rank_logs: Folder for a log of each rank's batches; None writes none.
        is_temporary: Whether the folder for the checkpoint is deleted at the end: MLflow has the model then.
    """

    checkpoints: str | None = None
    every_seconds: float = 60.0
    resume: bool = False
    trace: Path | None = None
    tensorboard: Path | None = None
    mlflow: str | None = None
    rank_logs: Path | None = None
    is_temporary: bool = False

    @property
    def checkpoint_folder(self) -> str | None:
        """The absolute path or URL of the folder for the latest checkpoint."""
        return None if self.checkpoints is None else absolute_folder(self.checkpoints, Path.cwd())


def train_once(
    task: str,
    given: Sequence[str],
    *,
    task_options: Sequence[str] = (),
    world_size: int,
    epochs: int,
    seed: int,
    device: str,
    group: GroupOptions,
    keeping: Keeping,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> dict[str, Any] | None:
    """Train a task once.

    Args:
        task: Name of a built-in task, or `module:Class`.
        given: Parameters of the trainer or the task, `NAME=VALUE` each.
        task_options: Arguments of the task's constructor, `NAME=VALUE` each.
        world_size: Number of ranks; torchrun's own number replaces it.
        epochs: Number of epochs, those before a resumed checkpoint included.
        seed: Random seed of the initial weights, shuffling and dropout.
        device: "auto", "cpu" or "cuda".
        group: How the ranks form their process group.
        keeping: Files that the training writes.
        say: Called with each line for people.
        warn: Called with a line where a part of what was asked for cannot be kept; may be called in another thread.

    Returns:
        Plain values that describe the training; None on ranks other than 0 under torchrun.

    Raises:
        SpecError: A parameter or an option is unknown or out of range, they do not go together, or no epoch is left to
            train.
        TrainingError: The training failed.
    """
    wants_model = keeping.mlflow is not None and keeping.checkpoints is None and "RANK" not in os.environ
    with tempfile.TemporaryDirectory(prefix="automl-") if wants_model else nullcontext() as folder:
        if folder is not None:
            keeping = replace(keeping, checkpoints=folder, every_seconds=math.inf, is_temporary=True)
        return _train_once(
            task,
            given,
            task_options=task_options,
            world_size=world_size,
            epochs=epochs,
            seed=seed,
            device=device,
            group=group,
            keeping=keeping,
            say=say,
            warn=warn,
        )


def _train_once(
    task: str,
    given: Sequence[str],
    *,
    task_options: Sequence[str] = (),
    world_size: int,
    epochs: int,
    seed: int,
    device: str,
    group: GroupOptions,
    keeping: Keeping,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> dict[str, Any] | None:
    """Train as `train_once` says, with the files that are kept, or are on their way to MLflow."""
    presence = _presence(group)
    asked = asked_for(task, given, task_options=task_options, device=device)
    for option, wanted in (("--profile", keeping.trace), ("--rank-logs", keeping.rank_logs)):
        if asked.is_function and wanted is not None:
            problem = f"found the training function {task!r}, whose steps are its own; allowed: a task"
            raise SpecError(option, (), problem)
    params = dict(asked.params)
    under_torchrun = "RANK" in os.environ
    world_size = int(params.pop("world_size", world_size))
    world_size = int(os.environ["WORLD_SIZE"]) if under_torchrun else world_size
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if under_torchrun else world_size
    check_backend(group, asked.places, local_ranks)
    leads = int(os.environ.get("RANK", "0")) == 0
    if asked.crowded(world_size) and leads and not under_torchrun:
        say(f"warning: {asked.crowded(world_size)}")
    resume_from = _last(keeping, epochs)
    if keeping.resume and leads:
        say(f"continues from {resume_from}" if resume_from else f"no checkpoint in {keeping.checkpoints}: starts anew")
    spec = asked.spec(
        params,
        epochs=epochs,
        world_size=world_size,
        seed=seed,
        checkpoint_folder=keeping.checkpoint_folder,
        checkpoint_every_seconds=keeping.every_seconds,
        resume_from=resume_from,
    )
    if keeping.rank_logs is not None:
        check_folder("--rank-logs", (), str(keeping.rank_logs), keeping.rank_logs.absolute())
    tracking = _tracking(keeping.mlflow, task) if leads else None
    board = _board(keeping.tensorboard) if leads else None
    with _run(tracking, spec, asked, warn) as run:
        diary = _Diary(say, resume_from, board, run)
        began = time.monotonic()
        _train(spec, asked, diary, keeping, group=group, presence=presence, say=say)
        if not leads:
            return None
        diary.close()
        result = _result(spec, diary, time.monotonic() - began, asked.price.usd_per_slot_hour)
        if run is not None:
            run.end("KILLED" if result["drained"] else "FINISHED", diary.checkpoint, is_kept=not keeping.is_temporary)
            result["mlflow"] = run.summary()
        if keeping.is_temporary:
            result["checkpoint"] = None
    for line in summary_lines(result, asked.price.source):
        say(line)
    return result


def _presence(group: GroupOptions) -> Presence | None:
    """Let the other ranks that torchrun has started know of this one, before the task is loaded, which takes time."""
    if "RANK" not in os.environ:
        return None
    from trainers.rank_place import presence_in_environment

    return presence_in_environment(group.seconds)


def _train(
    spec: TrialSpec,
    asked: Asked,
    diary: _Diary,
    keeping: Keeping,
    *,
    group: GroupOptions,
    presence: Presence | None,
    say: Callable[[str], None],
) -> None:
    from trainers.local import train_locally  # loads torch, which takes seconds: what is wrong is refused before
    from trainers.local_rank import Draining, Extras

    draining = Draining()
    drains = keeping.checkpoints is not None and not keeping.is_temporary and "RANK" not in os.environ
    ends = _FUNCTION_ENDS if asked.is_function else _TASK_ENDS
    with _draining_soon(draining, say, ends) if drains else nullcontext():
        train_locally(
            spec,
            spec.world_size,
            diary.on_measurement,
            diary.facts_of,
            on_part=diary.on_part,
            on_profile=diary.profiles.append,
            extras=Extras(
                trace=str(keeping.trace) if keeping.trace else None,
                rank_logs=str(keeping.rank_logs.absolute()) if keeping.rank_logs else None,
                draining=draining,
            ),
            group=group,
            presence=presence,
            task=asked.trainable,
        )


def _draining_soon(draining: Draining, say: Callable[[str], None], ends: str) -> AbstractContextManager[None]:
    """Let a signal end the training with a checkpoint; under torchrun its own agent decides, and ends all ranks."""
    return draining_signals(lambda _reason: draining.request(), say, ends)


class _Diary:
    """Collects the measurements of a training and prints them; keeps the latest checkpoint and deletes older ones."""

    def __init__(
        self,
        say: Callable[[str], None],
        resume_from: str | None,
        board: TensorBoard | None,
        run: MlflowRun | None,
    ) -> None:
        self.facts: list[RankFacts] = []
        self.history: list[Measurement] = []
        self.profiles: list[Profile] = []
        self.ended_within: EpochPart | None = None
        self.checkpoint = resume_from
        self._say, self._board, self._run = say, board, run

    def facts_of(self, rank: RankFacts) -> None:
        self.facts.append(rank)
        shares = (
            f", {rank.samples} of {rank.facts.samples} samples in a pass over the data" if rank.facts.samples else ""
        )
        self._say(f"rank {rank.rank}: {rank.device}{shares}")
        if self._run is not None and rank.rank == 0:
            self._run.describe(rank)

    def on_measurement(self, measurement: Measurement) -> None:
        self.history.append(measurement)
        self._say(_epoch_line(measurement))
        if self._board is not None:
            self._board.add(measurement)
        if self._run is not None:
            self._run.add(measurement.epoch, measurement.figures)
        if measurement.checkpoint is not None:
            self._replace_checkpoint(measurement.checkpoint)

    def on_part(self, part: EpochPart) -> None:
        self.ended_within = part if part.ended else None
        self._say(f"epoch {part.epoch:3}  saved after {part.fraction:.0%} of it")
        self._replace_checkpoint(part.checkpoint)

    def _replace_checkpoint(self, path: str) -> None:
        from trainers.checkpoint import note_latest  # torch is loaded: something was trained

        before, self.checkpoint = self.checkpoint, path
        note_latest(path)
        if before is not None and before != path:
            delete_file(before)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _last(keeping: Keeping, epochs: int) -> str | None:
    """The checkpoint to continue from; under torchrun every rank looks for it, before any of them trains."""
    from trainers.checkpoint import epoch_of, latest_checkpoint

    if keeping.checkpoint_folder is None or not keeping.resume:
        return None
    found = latest_checkpoint(keeping.checkpoint_folder)
    if found is not None and epoch_of(found) >= epochs:
        problem = f"found {epochs}, but {found} is of epoch {epoch_of(found)}, so nothing is left; allowed: more"
        raise SpecError("--epochs", (), problem)
    return found


def _tracking(given: str | None, task: str) -> Tracking | None:
    if given is None:
        return None
    from automl.training.mlflow_run import open_tracking

    return open_tracking(given, task)


def _run(
    tracking: Tracking | None, spec: TrialSpec, asked: Asked, warn: Callable[[str], None]
) -> AbstractContextManager[MlflowRun | None]:
    if tracking is None:
        return nullcontext()
    from automl.training.mlflow_run import MlflowRun

    return MlflowRun(tracking, spec, asked, warn)


def _board(folder: Path | None) -> TensorBoard | None:
    from trainers.tensorboard import TensorBoard, TensorBoardMissingError

    if folder is None:
        return None
    try:
        return TensorBoard(folder)
    except TensorBoardMissingError as error:
        cure = f"install it: {install_command('tensorboard')}"
        raise SpecError("--tensorboard", (), f"found {str(folder)!r}, but {error}; {cure}") from None
    except OSError as error:
        raise SpecError("--tensorboard", (), f"found {str(folder)!r}: {error.strerror or error}") from None


def _epoch_line(measurement: Measurement) -> str:
    """An epoch's losses and the task's own metrics as a line; the JSON has all metrics."""
    named = {name: value for name, value in measurement.metrics.items() if name in _LOSSES or name not in OUR_METRICS}
    figures = "  ".join(f"{name} {value:.4f}" for name, value in named.items())
    return f"epoch {measurement.epoch:3}  {figures}  {measurement.wall_seconds:.3f} s"


def _result(spec: TrialSpec, diary: _Diary, seconds: float, usd_per_slot_hour: float) -> dict[str, Any]:
    from trainers.epoch_plan import samples_of_rank

    shared = diary.facts[0].facts
    return {
        "task": spec.task,
        "params": dict(spec.params),
        "world_size": spec.world_size,
        "samples_per_rank": {
            str(rank): samples_of_rank(shared.samples, shared.effective_batch, rank=rank, world_size=spec.world_size)
            for rank in range(spec.world_size)
        },
        "effective_batch": shared.effective_batch,
        "reference_batch": shared.reference_batch,
        "base_learning_rate": shared.base_learning_rate,
        "scaled_learning_rate": shared.scaled_learning_rate,
        "lr_scaling": shared.lr_scaling,
        "model_parameters": shared.model_parameters,
        "start_epoch": shared.start_epoch,
        "epochs": [
            {"epoch": m.epoch, "wall_seconds": m.wall_seconds, "metrics": dict(m.metrics)} for m in diary.history
        ],
        "wall_seconds": seconds,
        "cost_usd": cost_nano_usd(spec.world_size, seconds, usd_per_slot_hour) / NANO,
        "checkpoint": diary.checkpoint,
        "drained": diary.ended_within is not None or diary.history[-1].ended,
        "profile": asdict(diary.profiles[0]) if diary.profiles else None,
        "mlflow": None,
    }
