"""What a study and a trial exchange: a frozen `TrialSpec` in, `Measurement`s out, and the errors.

No torch here: the controller reads this module, and the controller never imports torch.

    TrainingError
    ├── TaskError          the user's code raised                     the trial fails as `error`
    ├── DivergedError      the loss or a metric is not finite         the trial fails as `diverged`
    ├── OutOfMemoryError   the device or the process ran out          the trial fails as `out_of_memory`
    └── LostError          a rank or its connection died              the trial goes on from its checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from search_spaces.suggestions import Asked
from search_spaces.user_errors import RunError

Backend = Literal["gloo", "nccl"]
"""What carries the messages of a process group."""
BACKENDS: Mapping[str, Backend] = {"cpu": "gloo", "cuda": "nccl"}
"""Backend that carries the tensors of a kind of device."""
ParameterValue = bool | int | float | str | None
Params = Mapping[str, ParameterValue]
"""Parameters of a configuration by name."""
Failure = Literal["error", "diverged", "out_of_memory", "timeout", "lost", "unreadable", "storage"]
"""How an attempt fails. `unreadable`: the checkpoint to go on from cannot be read; no trial fails for it.
`storage`: a checkpoint cannot be written, which is nobody's fault but the disk's.
"""

ALWAYS_MEASURED = (
    "cost_usd",
    "wall_seconds",
    "model_parameters",
    "latency_ms",
    "train_loss",
    "val_loss",
    "samples_per_second",
    "train_seconds",
    "data_seconds",
    "evaluation_seconds",
    "peak_memory_bytes",
)
"""Metrics that every trial has, whatever its task; the first two are added by the controller, which knows prices."""

SOMETIMES_MEASURED = ("communication_seconds", "compute_seconds", "adascale_gain", "gradient_noise_scale")
"""Metrics that the trainer adds where it can measure them."""

OUR_METRICS = frozenset((*ALWAYS_MEASURED, *SOMETIMES_MEASURED))
"""Names that a task's own metrics cannot have."""


GROUP_INTERFACE = "AUTOML_GROUP_INTERFACE"
"""Environment variable with the network interface on which all ranks of a pool reach each other, if it is known."""

TEST_PREFIX = "test."
"""In front of the names of metrics that were measured on the test part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostics:
    """Files beside its checkpoints that tell of a single training.

    Attributes:
        trace: File for a profile of some steps of rank 0; None profiles nothing.
        rank_logs: Folder for the losses of each rank's batches, a CSV file for each rank; None writes none.
        tensorboard: Folder for TensorBoard's files of each epoch's figures; None writes none.
    """

    trace: str | None = None
    rank_logs: str | None = None
    tensorboard: str | None = None


def operations_path(trace: str | Path) -> Path:
    """Return the file beside a profile's trace that holds its most expensive operations as JSON."""
    return Path(f"{trace}.operations")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpec:
    """Everything the ranks of one attempt need to know; they never ask back.

    Attributes:
        trial: Number of the trial within its study, from 0.
        attempt: Number of the attempt within its trial, from 1.
        task: A built-in task's name, or "module:Class".
        task_options: Keyword arguments of the task's constructor.
        params: What the search chose, inactive parameters left out.
        training: The spec's `training` section; a parameter of the same name takes precedence.
        milestones: Epochs whose checkpoint is kept, ascending.
        checkpoint_folder: Absolute folder for this trial's checkpoints; None writes none.
        checkpoint_every_seconds: A checkpoint to go on from is written after the first step or epoch that ends after
            so long.
        resume_from: Checkpoint to go on from, or None to start afresh.
        test_at_end: Whether the last measurement has the metrics of the test part, too, if the task has one: each
            under its name with `TEST_PREFIX` in front.
        test_at: Epochs whose measurements have them as well; so has that of an earlier end.
        python_path: Folders put in front of `sys.path`, so that a task beside the spec can be imported.
        environment: Variables that a training function or a command gets, where its process has not set them.
        proposed: Values, with the domains that they are meant for, of parameters that the trial may ask for as it runs,
            beside `params`; those that are not among them it draws. None if it may ask for none.
    """

    study: str
    trial: int
    attempt: int = 1
    task: str
    task_options: Mapping[str, object] = field(default_factory=dict)
    params: Mapping[str, ParameterValue]
    training: Mapping[str, object] = field(default_factory=dict)
    world_size: int = 1
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    cpus_per_rank: int = 1
    milestones: tuple[int, ...] = ()
    checkpoint_folder: str | None = None
    checkpoint_every_seconds: float = 60.0
    resume_from: str | None = None
    test_at_end: bool = False
    test_at: tuple[int, ...] = ()
    python_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    proposed: Mapping[str, Asked] | None = None
    diagnostics: Diagnostics = Diagnostics()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAssignment:
    """Which rank of which gang a process is.

    Attributes:
        key: The attempt's identity; orders that carry another are ignored.
        group_id: Identity of the process group; one that still stands from the trial before is used again.
        store: Host, port and secret of the pool's store; None where no group of several ranks is ever formed.
        timeout_seconds: Deadline of each request to the store, of the group's formation and of each collective.
    """

    key: str
    rank: int
    group_id: str
    backend: Backend = "gloo"
    store: tuple[str, int, str] | None = field(repr=False)
    one_host: bool
    timeout_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFacts:
    """What is known once model and data are built, before the first step.

    Attributes:
        base_learning_rate: The searched one, meant for `reference_batch` samples a step.
        lr_scaling: The rule that was applied: linear, sqrt, none or adascale.
        reference_batch: Samples per step for which the base learning rate is meant.
        start_epoch: Epochs already done, 0 unless resumed.
        code_files: Hashes of the files of the user's own code that were loaded, by path; empty for a built-in task.
    """

    base_learning_rate: float
    scaled_learning_rate: float
    lr_scaling: str
    reference_batch: int
    effective_batch: int
    samples: int
    samples_per_rank: int
    model_parameters: int
    start_epoch: int
    code_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What a trial sends after an epoch.

    Attributes:
        epoch: The epoch that ended, from 1.
        metrics: Averages over all ranks' samples; non-finite values are kept, the controller judges them.
        wall_seconds: Duration of this epoch on rank 0, with its validation and what it waited for its checkpoint;
            without the parts of it that were saved before.
        checkpoint: Absolute path of the checkpoint written at this epoch's end, or None.
        checkpoint_bytes: Size of that file in bytes, 0 without one.
        ended: True when the ranks stopped here because they were told to drain.
        complete: True when the ranks stopped here since patience ran out (`early_stop_patience`): the trial's last
            epoch, though it was planned for more.
        unsaved: True when a program that saves its model where it is wanted has ended early with an epoch that it has
            not saved: that epoch is no milestone, and displaces no model that is kept.
        age_seconds: How long ago the epoch ended when this was sent: those of short epochs travel together, and none
            before its checkpoint is whole.
        optimizer: Figures that are no metrics: `learning_rate` of the epoch's last step, and `gradient_norm`, the root
            mean square over steps before clipping, where it is measured. Empty where the trainer does not know them.
    """

    epoch: int
    metrics: Mapping[str, float]
    wall_seconds: float
    checkpoint: str | None = None
    checkpoint_bytes: int = 0
    ended: bool = False
    complete: bool = False
    unsaved: bool = False
    age_seconds: float = 0.0
    optimizer: Mapping[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """All figures of the epoch by name; a metric of the task comes before a figure of ours of the same name."""
        return {**self.optimizer, "wall_seconds": self.wall_seconds, **self.metrics}


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochPart:
    """What a trial sends once it has saved an epoch that has not ended.

    Attributes:
        epoch: The epoch that is being trained, from 1.
        fraction: Part of that epoch's work that is done, between 0 and 1.
        wall_seconds: Time on rank 0 since the epoch, or the part of it before this one, began to be trained.
        checkpoint_bytes: Size of that file in bytes.
        ended: True when the ranks stopped here because they were told to drain.
    """

    epoch: int
    fraction: float
    wall_seconds: float
    checkpoint: str
    checkpoint_bytes: int
    ended: bool = False
    age_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedFor:
    """What a trial sends once it has asked for a parameter as it runs: the name, and the value that it got."""

    name: str
    asked: Asked


class TrainingError(RunError):
    """A trial cannot go on; `failure` is the word that the trial's record gets."""

    failure: Failure = "error"


class TaskError(TrainingError):
    """The user's task raised, or returned something that cannot be trained on. The message holds the traceback."""

    failure: Failure = "error"


class NoTestPartError(TaskError):
    """A task that may have a test part was given none."""


class DivergedError(TrainingError):
    """The training loss or a metric became NaN or infinite."""

    failure: Failure = "diverged"


class OutOfMemoryError(TrainingError):
    """The device or the process has no memory left for this configuration."""

    failure: Failure = "out_of_memory"


class LostError(TrainingError):
    """A rank died, or ranks lost each other; another attempt may succeed."""

    failure: Failure = "lost"
