"""Ours: a task with the same data and model, trained as `automl train` trains it under torchrun."""

from __future__ import annotations

import os

from torch import Tensor, nn

from trainer_rivals import workload as w
from trainers.contract.task import BaseTask, Params
from trainers.contract.task_loading import load_task
from trainers.loop.trainer import Trainer
from trainers.protocol import TrialSpec
from trainers.ranks.process_group import destroy_group
from trainers.ranks.rendezvous import place_in_environment

VALIDATION_SAMPLES = 2000


class Patches(BaseTask):
    """Which patch of an image is brighter; from a Dataset, or from tensors in memory."""

    def __init__(self, *, in_memory: bool) -> None:
        self.in_memory = in_memory

    def train_data(self, _params: Params) -> tuple[Tensor, Tensor] | w.Images:
        """Return all samples."""
        return w.tensors() if self.in_memory else w.Images()

    def validation_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return some of them: how well it generalises is not the question here."""
        images, classes = w.tensors()
        return images[:VALIDATION_SAMPLES], classes[:VALIDATION_SAMPLES]

    def model(self, _params: Params) -> nn.Module:
        """Return the model of all contestants."""
        return w.model()


def main() -> None:
    """Train."""
    spec = TrialSpec(
        study="benchmark",
        trial=0,
        task="trainer_rivals.ours:Patches",
        task_options={"in_memory": os.environ["BENCHMARK_IN_MEMORY"] == "1"},
        params={"batch_per_rank": w.BATCH_PER_RANK, "learning_rate": w.LEARNING_RATE, "momentum": w.MOMENTUM},
        world_size=int(os.environ["WORLD_SIZE"]),
        training={"epochs": w.EPOCHS, "schedule": "constant", "warmup_epochs": 0, "lr_scaling": "none"},
    )
    group = place_in_environment("cpu").join()
    trainer = Trainer(spec, load_task(spec.task, spec.task_options), group=group)
    clock = w.Clock()
    for epoch in range(1, w.EPOCHS + 1):
        clock.start()
        for one in trainer.advance(epoch):
            rest = one.wall_seconds - one.metrics["train_seconds"] - one.metrics["evaluation_seconds"]
            clock.stop(one.metrics["train_loss"], train_seconds=one.metrics["train_seconds"], measuring_seconds=rest)
    trainer.close()
    destroy_group()


if __name__ == "__main__":
    main()
