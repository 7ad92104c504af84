"""`automl train`: one DDP training without a study, in processes of its own or under torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from automl.one_training import asked_for
from studies.money.ledger import cost_nano_usd
from studies.records import NANO
from trainers.protocol import OUR_METRICS, Measurement, TrialSpec

_LOSSES = ("train_loss", "val_loss")


def train_once(
    task: str,
    given: Sequence[str],
    *,
    task_options: Sequence[str] = (),
    world_size: int,
    epochs: int,
    seed: int,
    device: str,
    checkpoints: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Train and describe it; None on ranks other than 0 under torchrun.

    Args:
        task: As in a spec.
        given: Parameters of the trainer or the task, "name=value" each.
        task_options: Arguments of the task's constructor, likewise.
        world_size: Ranks; under torchrun its own number counts.
        epochs: To train for.
        seed: Of the initial weights, shuffling and dropout.
        device: "auto", "cpu" or "cuda".
        checkpoints: A folder for the last epoch's checkpoint; None keeps none.
        say: Called with each line for people.

    Raises:
        SpecError: A parameter or an option is unknown or out of range, or they do not go together.
        TrainingError: The training failed.
    """
    from trainers.local import RankFacts, train_locally

    asked = asked_for(task, given, task_options=task_options, device=device)
    params = dict(asked.params)
    under_torchrun = "RANK" in os.environ
    world_size = int(params.pop("world_size", world_size))
    world_size = int(os.environ["WORLD_SIZE"]) if under_torchrun else world_size
    leads = int(os.environ.get("RANK", "0")) == 0
    if asked.crowded(world_size) and leads and not under_torchrun:
        say(f"warning: {asked.crowded(world_size)}")
    folder = str(checkpoints.absolute()) if checkpoints else None
    spec = asked.spec(params, epochs=epochs, world_size=world_size, seed=seed, checkpoint_folder=folder)
    facts: list[RankFacts] = []
    history: list[Measurement] = []
    began = time.monotonic()

    def on_facts(rank: RankFacts) -> None:
        facts.append(rank)
        say(f"rank {rank.rank}: {rank.device}, {rank.samples} of {rank.facts.samples} samples an epoch")

    def on_measurement(measurement: Measurement) -> None:
        history.append(measurement)
        say(_epoch_line(measurement))

    train_locally(spec, world_size, on_measurement, on_facts)
    if not leads:
        return None
    seconds = time.monotonic() - began
    result = _result(spec, facts, history, seconds, asked.price.usd_per_slot_hour)
    for line in _summary_lines(result, asked.price.source):
        say(line)
    return result


def _epoch_line(measurement: Measurement) -> str:
    """Losses and the task's own metrics; what else is measured is in the JSON."""
    named = {name: value for name, value in measurement.metrics.items() if name in _LOSSES or name not in OUR_METRICS}
    figures = "  ".join(f"{name} {value:.4f}" for name, value in named.items())
    return f"epoch {measurement.epoch:3}  {figures}  {measurement.wall_seconds:.3f} s"


def _result(
    spec: TrialSpec, facts: list[Any], history: list[Measurement], seconds: float, usd_per_slot_hour: float
) -> dict[str, Any]:
    from trainers.data import samples_of_rank

    shared = facts[0].facts
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
        "epochs": [{"epoch": m.epoch, "wall_seconds": m.wall_seconds, "metrics": dict(m.metrics)} for m in history],
        "wall_seconds": seconds,
        "cost_usd": cost_nano_usd(spec.world_size, seconds, usd_per_slot_hour) / NANO,
        "checkpoint": history[-1].checkpoint if history else None,
    }


def _summary_lines(result: dict[str, Any], source: str) -> list[str]:
    per_rank = ", ".join(f"{rank}: {samples}" for rank, samples in result["samples_per_rank"].items())
    last = result["epochs"][-1]["metrics"]
    validation = "  ".join(f"{name} {value:.4f}" for name, value in last.items() if name.startswith("val_"))
    rates = f"{result['base_learning_rate']:g} scaled to {result['scaled_learning_rate']:g}"
    return [
        "",
        f"ranks            {result['world_size']}  (samples an epoch by rank: {per_rank})",
        f"effective batch  {result['effective_batch']}  (the learning rate is meant for {result['reference_batch']})",
        f"learning rate    {rates}  ({result['lr_scaling']})",
        f"result           {validation}",
        f"time             {result['wall_seconds']:.2f} s with starting the ranks",
        f"cost             ${result['cost_usd']:.6f}  ({source})",
        *([f"checkpoint       {result['checkpoint']}"] if result["checkpoint"] else []),
    ]
