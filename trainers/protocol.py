"""Data that a study and its trials exchange: `TrialSpec`, `Measurement`s and errors. Does not import torch.

TrainingError
├── TaskError          the user's code raised                     the trial fails as `error`
├── DivergedError      the loss or a metric is not finite         the trial fails as `diverged`
├── OutOfMemoryError   the device or the process ran out          the trial fails as `out_of_memory`
└── LostError          a rank or its connection died          the trial continues from its checkpoint
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from search_spaces.messages import RunError
from search_spaces.suggestions import Asked

Backend = Literal["gloo", "nccl"]
BACKENDS: Mapping[str, Backend] = {"cpu": "gloo", "cuda": "nccl"}
ParameterValue = bool | int | float | str | None
Params = Mapping[str, ParameterValue]
Failure = Literal["error", "diverged", "out_of_memory", "timeout", "lost", "unreadable", "storage"]
"""Kinds of a failed attempt. `unreadable` (checkpoint) and `storage` (full or broken disk) do not fail the trial."""

CUMULATIVE_METRICS = frozenset({"cost_usd", "wall_seconds"})
"""Sums over epochs, which the controller adds, because it knows prices; extrapolated to the last epoch if pruned."""
ALWAYS_MEASURED = (
    *sorted(CUMULATIVE_METRICS), "model_parameters", "latency_ms", "train_loss", "val_loss", "samples_per_second",
    "train_seconds", "data_seconds", "evaluation_seconds", "peak_memory_bytes",
)  # fmt: skip
"""Metrics of every trial."""

TEST_SAMPLES = "test_samples"  # number of test samples, beside test metrics

SOMETIMES_MEASURED = (
    "communication_seconds", "compute_seconds", "adascale_gain", "gradient_noise_scale", TEST_SAMPLES,
)  # fmt: skip
"""Metrics that the trainer adds if it can measure them."""

OUR_METRICS = frozenset((*ALWAYS_MEASURED, *SOMETIMES_MEASURED))  # a task's metrics need other names


GROUP_INTERFACE = "AUTOML_GROUP_INTERFACE"
"""Environment variable with the network interface that connects all ranks of a pool, if known."""

TEST_PREFIX = "test."  # prefix of metrics of the test part

STDERR = "_stderr"  # ending of names of standard errors


EXPLAINING_SECONDS = 5.0  # limit for describing a model's answers


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostics:
    """Paths of diagnostic files for a single training: rank 0's profile, batch losses, and TensorBoard's folder."""

    trace: str | None = None
    rank_logs: str | None = None
    tensorboard: str | None = None


def operations_path(trace: str | Path) -> Path:
    """Return the path, beside a profiler's trace, of the JSON list of the most expensive operations."""
    return Path(f"{trace}.operations")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpec:
    """Settings of one attempt of a trial, for each of its ranks.

    Attributes:
        trial: Number of the trial within its study, from 0.
        attempt: Number of the attempt within its trial, from 1.
        params: Active parameters chosen by the search.
        training: The spec's `training` section; a parameter of the same name takes precedence.
        milestones: Epochs whose checkpoints are kept as models, ascending.
        checkpoint_folder: Absolute folder for this trial's checkpoints; None writes none.
        checkpoint_every_seconds: Time after which a checkpoint for resuming is due.
        test_at_end: The last measurement has test metrics, too, named with `TEST_PREFIX`, if the task has test data.
        test_at: Further epochs with test metrics, or the end of a shorter trial. A trial that resumes at such an epoch
            is only tested.
        explain_seconds: Time to describe a tested model's answers, see `trainers.loop.epoch_metrics`; 0 describes none.
        python_path: Folders in front of `sys.path`, to import a task beside the spec.
        environment: Variables for a training function or command, unless set in its process.
        proposed: Values for parameters requested at run time; the trial draws others. None forbids requests.
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
    explain_seconds: float = 0.0
    python_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    proposed: Mapping[str, Asked] | None = None
    diagnostics: Diagnostics = Diagnostics()

    def is_tested_at(self, epoch: int, *, is_last: bool) -> bool:
        """Return whether the measurement after `epoch` has test metrics. `is_last`: the training ends there."""
        return epoch in self.test_at or (is_last and (self.test_at_end or bool(self.test_at)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAssignment:
    """A process's rank, and its connection to the other ranks of its trial.

    Attributes:
        key: Identity of the attempt; orders with another key are ignored.
        group_id: Identity of the process group; an open group of the previous trial is reused.
        store: Host, port and secret of the pool's store; None if no gang has several ranks.
        timeout_seconds: Deadline of each store request, of the group's formation and of each collective.
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
    """Facts about an attempt, known once model and data are built.

    Attributes:
        base_learning_rate: The searched learning rate, for `reference_batch` samples a step.
        start_epoch: Epochs already done, 0 unless resumed.
        code_files: Hashes of the user's loaded files, by path; empty for a built-in task.
        data_files: Hashes of files in a task's options, by path.
        can_explain: The task can describe a model's answers.
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
    data_files: Mapping[str, str] = field(default_factory=dict)
    has_test_part: bool = False
    can_explain: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Message of a trial after an epoch, with metrics, duration and checkpoint.

    Attributes:
        metrics: Averages over all ranks' samples, possibly not finite.
        wall_seconds: Duration on rank 0, with validation and waiting for its checkpoint, without earlier saved parts.
        ended: The ranks stopped here because the study ordered an end with a checkpoint.
        complete: This is the trial's last epoch: patience ran out (`early_stop_patience`).
        unsaved: A program that saves on request ended early without saving this epoch, which is no milestone and
            replaces no kept model.
        age_seconds: Time from the epoch's end to the sending: short epochs are sent together, and wait for checkpoints.
        optimizer: Known `learning_rate` of the last step and `gradient_norm` (root mean square before clipping).
        answers: Description of answers to validation samples, as plain values, if the spec has `explain_seconds`.
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
    answers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Return all numbers of the epoch by name. A task's metric replaces the trainer's of the same name."""
        return {**self.optimizer, "wall_seconds": self.wall_seconds, **self.metrics}


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochPart:
    """Message of a trial after a checkpoint within an epoch."""

    epoch: int
    fraction: float  # part of the epoch's work that is done, between 0 and 1
    wall_seconds: float  # time on rank 0 since the epoch or its previous part began
    checkpoint: str
    checkpoint_bytes: int
    ended: bool = False  # the ranks stopped here by order
    age_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedFor:
    """Message of a trial about a parameter requested at run time, with its value."""

    name: str
    asked: Asked


class TrainingError(RunError):
    """The trial cannot continue. `failure` is the kind of the error."""

    failure: Failure = "error"


class TaskError(TrainingError):
    """The user's task raised, or returned a wrong value. The message holds the traceback."""


class NoTestPartError(TaskError):
    """The task has a method `test_data`, but its options name no test samples."""


class DivergedError(TrainingError):
    """The training loss or a metric became NaN or infinite."""

    failure: Failure = "diverged"


class OutOfMemoryError(TrainingError):
    """The device or the process has no memory left for this configuration."""

    failure: Failure = "out_of_memory"


class LostError(TrainingError):
    """A rank died, or the connection between ranks broke. Another attempt may succeed."""

    failure: Failure = "lost"
