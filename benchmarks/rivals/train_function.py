"""What Ray's workers run in both of Ray's patterns: our loop in a group that Ray Train has formed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from rivals.workload import WORLD_SIZE, trial_spec

RAY_OPTIONS: dict[str, Any] = {
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
    "log_to_driver": False,
    "object_store_memory": 128 * 1024**2,
}
"""As our own pool starts Ray."""


def train_function(config: dict[str, Any]) -> None:
    """Train trial `config["number"]` and report each epoch, with a checkpoint at the milestones."""
    import ray.train
    from ray.train import Checkpoint

    from trainers.contract.task_loading import load_task
    from trainers.loop.trainer import Trainer
    from trainers.ranks.process_group import Group

    rank = ray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as scratch:
        spec = trial_spec(config["number"], Path(scratch))
        task = load_task(spec.task, spec.task_options, spec.python_path)
        trainer = Trainer(spec, task, group=Group(rank=rank, world_size=WORLD_SIZE))
        for measurement in trainer.advance(spec.training["epochs"]):  # type: ignore[arg-type]
            if rank or measurement.checkpoint is None:
                ray.train.report(dict(measurement.metrics))
                continue
            with tempfile.TemporaryDirectory() as folder:
                shutil.move(measurement.checkpoint, folder)
                ray.train.report(dict(measurement.metrics), checkpoint=Checkpoint.from_directory(folder))
        trainer.close()


def make_trainer(number: int, storage: Path, name: str, callbacks: list[Any]) -> Any:
    """Return a TorchTrainer of two workers with one CPU each, on gloo."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    return TorchTrainer(
        train_function,
        train_loop_config={"number": number},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORLD_SIZE, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=name, storage_path=str(storage), callbacks=callbacks),
    )
