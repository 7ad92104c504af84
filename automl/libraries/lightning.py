"""Lightning: uses a `lightning.Trainer` as the training loop of a trial.

    from automl.libraries import lightning as trial_lightning

    def train(trial: automl.Trial) -> None:
        trainer = lightning.Trainer(**trial_lightning.options(trial), precision="bf16-mixed")
        trial_lightning.fit(trial, trainer, Module(lr=trial.learning_rate), train_loader, validation_loader)

The trainer uses the trial's ranks, and reports logged metrics each epoch. Checkpoints contain Lightning's checkpoint.
"""

from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from automl.libraries.epoch_calls import EpochCalls
from trainers.functions.trial import Trial
from trainers.protocol import TaskError

_NAME = "checkpoint of the trial"  # Lightning's path of a checkpoint in memory


def options(trial: Trial) -> dict[str, Any]:
    """Return arguments for `lightning.Trainer`: ranks, devices and epochs of the trial.

    Lightning's own checkpoints, progress bar and loggers are off. To switch them on, override an argument:
    `Trainer(**(options(trial) | {"logger": my_logger}))`.
    """
    # Lightning keeps the rank of the process in a global variable, which an earlier trial may have set.
    rank_zero_only.rank = trial.rank
    if trial.world_size == 1:
        strategy: Any = SingleDeviceStrategy(device=trial.device)
    else:
        strategy = DDPStrategy(
            parallel_devices=[trial.device] * trial.world_size,
            cluster_environment=GangEnvironment(trial),
            **trial.ddp_options(),
        )
    return {
        "accelerator": trial.device.type,
        "strategy": strategy,
        "devices": 1,  # Lightning compares it with the GPUs of this rank; the strategy has all ranks' devices
        "max_epochs": trial.max_epochs,
        "accumulate_grad_batches": trial.accumulate,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def fit(trial: Trial, trainer: lightning.Trainer, model: lightning.LightningModule, *data: Any, **more: Any) -> None:
    """Run `trainer.fit` as the trial's training loop, after the epochs of earlier attempts.

    Args:
        trainer: Trainer made with `options`.
        data: Data loaders for `trainer.fit`.
        more: Further arguments of `trainer.fit` by name: data loaders or a data module.

    Raises:
        TaskError: The trainer's ranks differ from the trial's, or `more` has an argument that the trial sets.
    """
    if "ckpt_path" in more:
        raise TaskError("fit() got ckpt_path, but the trial chooses the checkpoint. Leave ckpt_path out")
    ranks = trainer.world_size, trainer.global_rank
    if ranks != (trial.world_size, trial.rank):
        raise TaskError(
            f"lightning.Trainer has rank {ranks[1]} of {ranks[0]}, but the trial has rank {trial.rank} of "
            f"{trial.world_size}. Create it with lightning.Trainer(**options(trial))"
        )
    memory = _InMemory(trainer)
    calls = EpochCalls(trial, lightning=memory)
    trial.modules.append(model)
    trainer.callbacks.insert(0, TrialCallback(trial, calls))
    # Lightning's loaders draw random numbers before the first epoch's callback, but after the callback of later epochs.
    # So begin the first epoch here, where the generators are seeded.
    if not calls.are_all_done():
        calls.begin()
        trainer.fit(model, *data, ckpt_path=_NAME if memory.content else None, **more)


class TrialCallback(lightning.Callback):
    """Reports the logged metrics after each epoch, and begins the next epoch. `fit` begins the first epoch."""

    def __init__(self, trial: Trial, calls: EpochCalls) -> None:
        self._trial, self._calls = trial, calls
        self._has_begun, self._is_trained = True, False
        self._reported: dict[str, Tensor] = {}

    def on_train_epoch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """End the previous epoch and begin this one."""
        if not self._has_begun:
            self._report(trainer)
            self._calls.begin()
        self._has_begun, self._is_trained = False, True

    def on_train_batch_end(self, *_: Any) -> None:
        """Send a heartbeat after each training batch."""
        self._trial.heartbeat()

    def on_validation_batch_end(self, *_: Any) -> None:
        """Send a heartbeat after each validation batch."""
        self._trial.heartbeat()

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Report the last epoch."""
        if self._is_trained:
            self._report(trainer)

    def _report(self, trainer: lightning.Trainer) -> None:
        # Lightning keeps the metrics of earlier epochs. Newly logged metrics are other tensors.
        found, before = dict(trainer.callback_metrics), self._reported
        self._reported = found
        logged = {name: value for name, value in found.items() if value is not before.get(name) and value.numel() == 1}
        self._calls.report(logged, "Lightning's self.log")


class GangEnvironment(ClusterEnvironment):
    """Describes a trial's running ranks to Lightning."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._rank, self._world_size = trial.rank, trial.world_size

    @property
    def creates_processes_externally(self) -> bool:
        """Return True, because the ranks already run."""
        return True

    @property
    def main_address(self) -> str:
        """Return a placeholder, because the process group already exists."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Return a placeholder, because the process group already exists."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Return False, so that Lightning never chooses this environment by itself."""
        return False

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: Lightning passes the same number."""

    def global_rank(self) -> int:
        """Return this rank's number."""
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: Lightning passes the same rank."""

    def local_rank(self) -> int:
        """Return the global rank, because Lightning prepares data once for all ranks."""
        return self._rank

    def node_rank(self) -> int:
        """Return 0, because nothing here depends on the machine."""
        return 0

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accept any settings: `fit` compares the numbers of ranks."""


class _InMemory(CheckpointIO):
    """Passes Lightning's checkpoint to the trial and back in memory. Other files are written as usual."""

    def __init__(self, trainer: lightning.Trainer) -> None:
        self._files = trainer.strategy.checkpoint_io
        trainer.strategy.checkpoint_io = self
        self._trainer = trainer
        self.content: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return Lightning's checkpoint on rank 0, and an empty mapping elsewhere. All ranks must call this."""
        self._trainer.save_checkpoint(_NAME)
        content, self.content = self.content, {}
        if content:
            _set_to_epoch_start(content["loops"]["fit_loop"])
        for name in [name for name in content if name.endswith("hyper_parameters")]:
            content[name] = {key: value for key, value in content[name].items() if _is_plain(value)}
        return content

    def load_state_dict(self, content: dict[str, Any]) -> None:
        self.content = content

    def how_to_load(self, state: str) -> str:
        return f'module.load_state_dict({state}["state_dict"])  # a LightningModule, built for exported["params"]'

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Store the trial's checkpoint in memory, another checkpoint in its file."""
        if path == _NAME:
            self.content = checkpoint
        else:
            self._files.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
        """Return the trial's checkpoint from memory, another checkpoint from its file."""
        if path != _NAME:
            content: dict[str, Any] = self._files.load_checkpoint(path, *arguments, **more)
            return content
        content, self.content = self.content, {}
        return content

    def remove_checkpoint(self, path: Any) -> None:
        self._files.remove_checkpoint(path)

    def teardown(self) -> None:
        self._files.teardown()


def _set_to_epoch_start(fit_loop: dict[str, Any]) -> None:
    """Set a checkpoint's counters, which still count the previous epoch, to the start of a new epoch."""
    for name, progress in fit_loop.items():
        if name == "epoch_progress":
            for counts in progress.values():
                counts["ready"] = counts["started"]
        elif name.endswith("progress"):
            _clear_current(progress)


def _clear_current(progress: dict[str, Any]) -> None:
    for name, value in progress.items():
        if name == "current":
            progress[name] = dict.fromkeys(value, 0)
        elif name == "is_last_batch":
            progress[name] = False
        elif isinstance(value, dict):
            _clear_current(value)


def _is_plain(value: Any) -> bool:
    if type(value) in {dict, list, tuple}:
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return all(map(_is_plain, parts))
    return value is None or type(value) in {bool, int, float, str, bytes, Tensor, torch.dtype}
