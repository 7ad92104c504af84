"""Accelerate: makes an `accelerate.Accelerator` for your own training loop in a trial.

    from automl.libraries import accelerate as trial_accelerate

    def train(trial: automl.Trial) -> None:
        accelerator = trial_accelerate.accelerator(trial, mixed_precision="bf16")
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in trial.epochs(model=model, optimizer=optimizer):
            ...
            trial.report(val_error=error)

The accelerator uses the trial's process group.
"""

import os
from typing import Any

import accelerate
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs

from trainers.functions.trial import Trial


def accelerator(trial: Trial, **options: Any) -> accelerate.Accelerator:
    """Return an accelerator that uses the trial's process group.

    Args:
        options: Arguments of `accelerate.Accelerator`. Defaults: the trial's `gradient_accumulation_steps`, and a
            `dataloader_config` whose sample order depends only on seed and epoch (`loader.set_epoch(epoch)`).
    """
    join_gang(trial)
    ddp = DistributedDataParallelKwargs(**trial.ddp_options())
    handlers = options.pop("kwargs_handlers", None) or []
    if not any(isinstance(handler, DistributedDataParallelKwargs) for handler in handlers):
        handlers = [*handlers, ddp]
    given = {
        "cpu": trial.device.type == "cpu",
        "gradient_accumulation_steps": trial.accumulate,
        "dataloader_config": DataLoaderConfiguration(use_seedable_sampler=True),
    }
    return accelerate.Accelerator(kwargs_handlers=handlers, **(given | options))


def join_gang(trial: Trial) -> None:
    """Let the next accelerator use this trial's process group instead of an earlier trial's.

    Accelerate keeps the group in shared objects, and reads environment variables, restored at the trial's end.
    """
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - transformers does the same
    GradientState._reset_state()  # noqa: SLF001
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # otherwise Accelerate uses all cores for each rank
    if trial.world_size > 1:
        local_rank = trial.rank if trial.device.index is None else trial.device.index
        os.environ |= {"RANK": str(trial.rank), "WORLD_SIZE": str(trial.world_size), "LOCAL_RANK": str(local_rank)}
        os.environ["LOCAL_WORLD_SIZE"] = str(trial.world_size)
