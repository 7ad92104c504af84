"""`automl compare`: runs a training at several world sizes, and compares speed and cost."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.training.request import Asked, asked_for, check_backend
from studies.money.ledger import cost_nano_usd
from studies.records.records import NANO
from studies.spec.spec_errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from trainers.protocol import Measurement, TrialFacts, TrialSpec
    from trainers.ranks.group_options import GroupOptions


_MOST_EFFICIENCY = 1.15
"""Efficiency above which a training must have been disturbed. Caches give slightly more than 1."""


def compare(
    task: str,
    world_sizes: Sequence[int],
    given: Sequence[str],
    *,
    task_options: Sequence[str] = (),
    epochs: int,
    seed: int,
    device: str,
    group: GroupOptions,
    usd_per_slot_hour: float | None = None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train the same steps at each world size, and compare speed and cost.

    The effective batch is constant: each pass has `batch_per_rank` samples, and fewer ranks accumulate more passes. So
    only the number of passes and communication differ. Medians of several epochs leave out the first, as a warm-up.
    A training function must use `trial.accumulate` or `trial.step`; its speed-up is the ratio of epoch times.
    """
    if "RANK" in os.environ:
        problem = "RANK is set, as under torchrun. Run `automl compare` without torchrun: it starts its own ranks"
        raise SpecError("automl compare", (), problem)
    asked = asked_for(task, given, task_options=task_options, device=device)
    if "world_size" in asked.params:
        raise SpecError(
            "--param", ("world_size",), "`automl compare` varies world_size itself. Give its values with --world-sizes"
        )
    check_backend(group, asked.places, max(world_sizes))
    price = asked.price.usd_per_slot_hour if usd_per_slot_hour is None else usd_per_slot_hour
    warnings = [warning for one in world_sizes if (warning := asked.crowded(one))]
    for warning in warnings:
        say(warning)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        rows = list(_rows(asked, world_sizes, epochs=epochs, seed=seed, group=group, folder=own, price=price))
    if odd := _too_quick(rows):
        warnings.append(odd)
        say(odd)
    facts = rows[0].pop("facts")
    for row in rows[1:]:
        del row["facts"]
    return {
        "task": task,
        "params": dict(asked.params),
        "device": asked.places.device_name,
        "slots": asked.places.slots,
        "epochs": epochs,
        "samples": facts.samples,
        "model_parameters": facts.model_parameters,
        "effective_batch": facts.effective_batch,
        "scaled_learning_rate": facts.scaled_learning_rate,
        "usd_per_slot_hour": price,
        "price_source": asked.price.source if usd_per_slot_hour is None else "--price-per-slot-hour",
        "warnings": warnings,
        "world_sizes": rows,
    }


def too_inefficient(compared: Mapping[str, Any], least: float) -> str:
    """Return a line with the world sizes below an efficiency, or ""."""
    poor = [
        f"{row['efficiency']:.2f} at world size {row['world_size']}"
        for row in compared["world_sizes"]
        if row["efficiency"] < least
    ]
    return f"efficiency: {', '.join(poor)}, less than {least:g}" if poor else ""


def _rows(
    asked: Asked, world_sizes: Sequence[int], *, epochs: int, seed: int, group: GroupOptions, folder: Path, price: float
) -> Iterator[dict[str, Any]]:
    from trainers.checkpoints.checkpoint import largest_difference
    from trainers.protocol import TaskError

    passes = asked.value("accumulate") * math.lcm(*world_sizes)
    first: dict[str, Any] = {}
    first_checkpoint = ""
    for world_size in world_sizes:
        accumulate = passes // world_size
        params = {**asked.params, "accumulate": accumulate}
        own_folder = str(folder / str(world_size))
        spec = asked.spec(params, epochs=epochs, world_size=world_size, seed=seed, checkpoint_folder=own_folder)
        try:
            history, facts = _train(spec, group)
        except TaskError as error:
            if f"accumulate is {accumulate}, but the training function ignores it" not in str(error):
                raise
            cure = (
                "`automl compare` accumulates gradients. Take steps by trial.step(optimizer) in the training function"
            )
            raise TaskError(cure) from error
        row = _measured(history, world_size, price) | {"accumulate": accumulate, "facts": facts}
        checkpoint = history[-1].checkpoint or ""
        if not first:
            first, first_checkpoint = row, checkpoint
        if row["samples_per_second"] is None:
            row["speed_up"] = first["epoch_seconds"] / row["epoch_seconds"]
        else:
            row["speed_up"] = row["samples_per_second"] / first["samples_per_second"]
        row["efficiency"] = row["speed_up"] * first["world_size"] / world_size
        is_saved = first_checkpoint and checkpoint
        row["weight_difference"] = largest_difference(first_checkpoint, checkpoint) if is_saved else None
        yield row


def _too_quick(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a warning about an impossible efficiency, or ""."""
    for row in rows:
        if row["efficiency"] > _MOST_EFFICIENCY:
            return (
                f"{row['world_size']} ranks have an efficiency of {100 * row['efficiency']:.0f} %, which cannot be: "
                "the machine was busy during another training. Compare again when it is idle"
            )
    return ""


def _train(spec: TrialSpec, group: GroupOptions) -> tuple[list[Measurement], TrialFacts]:
    from trainers.local.local_training import RankFacts, train_locally

    facts: list[RankFacts] = []
    history = train_locally(spec, spec.world_size, on_facts=facts.append, group=group)
    return history, facts[0].facts


def _measured(history: Sequence[Measurement], world_size: int, usd_per_slot_hour: float) -> dict[str, Any]:
    warm = history[1:] or history

    def median(figure: Callable[[Measurement], float]) -> float:
        return statistics.median(figure(one) for one in warm)

    has_share = "communication_seconds" in warm[0].metrics
    has_rate = "samples_per_second" in warm[0].metrics  # a training function's samples are not counted
    epoch_seconds = median(lambda one: one.wall_seconds)
    return {
        "world_size": world_size,
        "samples_per_second": median(lambda one: one.metrics["samples_per_second"]) if has_rate else None,
        "communication_share": (
            median(lambda one: one.metrics["communication_seconds"] / one.metrics["train_seconds"])
            if has_share
            else None
        ),
        "epoch_seconds": epoch_seconds,
        "usd_per_epoch": cost_nano_usd(world_size, epoch_seconds, usd_per_slot_hour) / NANO,
        "val_loss": history[-1].metrics.get("val_loss"),
    }


def table(compared: Mapping[str, Any]) -> Table:
    """Return the comparison as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    batch, steps = compared["effective_batch"], math.ceil(compared["samples"] / compared["effective_batch"])
    an_epoch = f"{steps} steps an epoch, " if steps else ""  # the number of samples of a stream is unknown
    title = f"{compared['task']}: effective batch {batch}, {an_epoch}{compared['epochs']} epochs"
    made = Table(box=box.SIMPLE, title=Text(title, style="table.title"), title_justify="left")
    names = ("ranks", "samples/s", "speed-up", "efficiency", "communication", "weights differ", "$ an epoch")
    for name in names:
        made.add_column(name, no_wrap=True, justify="right")
    for row in compared["world_sizes"]:
        share, rate, difference = (
            row[key] for key in ("communication_share", "samples_per_second", "weight_difference")
        )
        made.add_row(
            str(row["world_size"]),
            "" if rate is None else f"{rate:,.0f}",
            f"{row['speed_up']:.2f}",
            f"{row['efficiency']:.0%}",
            "" if share is None else f"{share:.0%}",
            "" if difference is None else f"{difference:.1e}",
            f"{row['usd_per_epoch']:.3g}",
        )
    return made
