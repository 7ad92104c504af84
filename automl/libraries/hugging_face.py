"""Hugging Face: uses a `transformers.Trainer` as the training loop of a trial.

    from automl.libraries import hugging_face

    def train(trial: automl.Trial) -> None:
        arguments = TrainingArguments(**hugging_face.options(trial), weight_decay=0.01)
        trainer = Trainer(model, arguments, train_dataset=..., eval_dataset=..., compute_metrics=...)
        hugging_face.fit(trial, trainer)

The trainer uses the trial's ranks, evaluates after each epoch, and reports its metrics. Checkpoints hold model,
optimizer, schedule, gradient scaler and the trainer's own state.
"""

import json
import shutil
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import has_length
from transformers.utils import WEIGHTS_NAME

from automl.callbacks import TIMES
from automl.libraries.accelerate import join_gang
from automl.libraries.epoch_calls import EpochCalls
from trainers.functions.trial import Trial
from trainers.protocol import TaskError


def options(trial: Trial) -> dict[str, Any]:
    """Return arguments for `transformers.TrainingArguments`: ranks, parameters and epochs of the trial.

    The trainer's own checkpoints, progress bar and reports are off. To switch them on, override an argument:
    `TrainingArguments(**(options(trial) | {"report_to": "wandb"}))`. Set `output_dir` if the trainer saves files,
    because the default folder is deleted with the trial.
    """
    join_gang(trial)
    ddp = trial.ddp_options()
    folder = tempfile.mkdtemp(prefix="transformers-")  # the trainer always creates a folder, and leaves it empty
    weakref.finalize(trial, shutil.rmtree, folder, ignore_errors=True)
    return {
        "output_dir": folder,
        "use_cpu": trial.device.type == "cpu",
        "num_train_epochs": trial.max_epochs,
        "learning_rate": trial.learning_rate,
        "per_device_train_batch_size": trial.batch_per_rank,
        "gradient_accumulation_steps": trial.accumulate,
        "seed": trial.seed % 2**32,  # transformers seeds numpy with it, which takes 32 bits
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "ddp_find_unused_parameters": ddp["find_unused_parameters"],
        "ddp_broadcast_buffers": ddp["broadcast_buffers"],
    }


def fit(trial: Trial, trainer: Trainer) -> None:
    """Run `trainer.train` as the trial's training loop, after the epochs of earlier attempts.

    The trainer's arguments come from `options`. Raises TaskError if its ranks differ from the trial's.
    """
    ranks = trainer.args.world_size, trainer.args.process_index
    if ranks != (trial.world_size, trial.rank):
        raise TaskError(
            f"transformers.Trainer has rank {ranks[1]} of {ranks[0]}, but the trial has rank {trial.rank} of "
            f"{trial.world_size}. Create its arguments with TrainingArguments(**options(trial))"
        )
    if trainer.args.n_gpu > 1:  # by default a single rank would use all GPUs, with a larger batch
        trainer.args._n_gpu = 1  # noqa: SLF001 - as transformers does for a model on several GPUs
        trainer._train_batch_size = trainer.args.train_batch_size  # noqa: SLF001 - computed from the old number of GPUs
    kept = _Kept(trainer)
    calls = EpochCalls(trial, hugging_face=kept)
    trial.modules.append(trainer.model)
    trainer.callback_handler.callbacks.insert(0, TrialCallback(trial, calls))
    trainer.remove_callback(PrinterCallback)  # it would print all reports, on every rank 0 of a study
    if calls.are_all_done():
        return
    if not has_length(trainer.train_dataset):
        # The trainer counts all steps of a stream as one epoch, and would skip finished steps. But attempts continue at
        # the start of an epoch, and each epoch reads the stream from its beginning.
        trainer.args.ignore_data_skip = True
    with ExitStack() as files:
        folder = None
        if kept.content:
            folder = files.enter_context(tempfile.TemporaryDirectory())
            kept.write(Path(folder))
        trainer.train(resume_from_checkpoint=folder)


class TrialCallback(TrainerCallback):
    """Reports the evaluation's metrics after each epoch, and begins the next epoch. `fit` adds this callback.

    Metrics have the trainer's names: `eval_loss`, and results of `compute_metrics` with the prefix `eval_`.
    """

    def __init__(self, trial: Trial, calls: EpochCalls) -> None:
        self._trial, self._calls = trial, calls
        self._logged: dict[str, float] = {}
        self._is_trained = False

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """End the previous epoch and begin this one."""
        if self._is_trained:
            self._report()
        self._calls.begin()
        self._is_trained = True

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Send a heartbeat after each training step."""
        self._trial.heartbeat()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Send a heartbeat after each evaluation step."""
        self._trial.heartbeat()

    def on_evaluate(self, *_: Any, **more: Any) -> None:
        """Store the metrics for the report at the epoch's end."""
        for name, value in (more.get("metrics") or {}).items():
            if isinstance(value, int | float) and not name.endswith(TIMES) and name != "epoch":
                self._logged[name] = float(value)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Report the last epoch."""
        if self._is_trained:
            self._report()

    def _report(self) -> None:
        logged, self._logged = self._logged, {}
        self._calls.report(logged, "the evaluation of transformers.Trainer")


class _Kept:
    """The trainer's state in a trial's checkpoint. `content` is empty without a checkpoint."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.content: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        content = {
            "model": trainer.accelerator.unwrap_model(trainer.model).state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "schedule": trainer.lr_scheduler.state_dict(),
            "state": json.dumps(asdict(trainer.state)),
        }
        scaler = getattr(trainer.accelerator, "scaler", None)
        return content if scaler is None else content | {"scaler": scaler.state_dict()}

    def load_state_dict(self, content: dict[str, Any]) -> None:
        self.content = content

    def how_to_load(self, state: str) -> str:
        return f'model.load_state_dict({state}["model"])  # a model that you have built for exported["params"]'

    def write(self, folder: Path) -> None:
        """Write the restored state to a folder, in transformers' checkpoint format."""
        names = {"model": WEIGHTS_NAME, "optimizer": OPTIMIZER_NAME, "schedule": SCHEDULER_NAME, "scaler": SCALER_NAME}
        for part, name in names.items():
            if part in self.content:
                torch.save(self.content[part], folder / name)
        (folder / TRAINER_STATE_NAME).write_text(self.content["state"], encoding="utf-8")
        self.content = {}
