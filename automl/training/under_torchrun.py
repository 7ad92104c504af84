"""Runs one rank of a training under torchrun, without study, Ray or store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.training.request import asked_for, check_backend, check_diagnostics
from automl.training.results import document, epoch_line, rank_line, summary_lines
from studies.control.files.kept_files import delete_file
from studies.money.ledger import cost_nano_usd
from studies.records.records import NANO
from studies.spec.spec_errors import SpecError
from trainers.checkpoints.locations import absolute_folder
from trainers.protocol import Diagnostics, EpochPart, Measurement
from trainers.ranks.group_options import BackendChoice, GroupOptions

if TYPE_CHECKING:
    from trainers.local.local_training import RankFacts


def train_under_torchrun(
    task: str,
    given: Sequence[str],
    *,
    task_options: Sequence[str],
    epochs: int,
    seed: int,
    device: str,
    backend: BackendChoice,
    group_seconds: float,
    checkpoints: str | None,
    checkpoint_every: float,
    resume: bool,
    diagnostics: Diagnostics,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Train as one rank. Returns the document on rank 0, else None. Raises SpecError or TrainingError."""
    from trainers.local.local_training import train_locally
    from trainers.ranks.rendezvous import presence_in_environment

    if resume and checkpoints is None:
        raise SpecError("train", (), "under torchrun, --resume needs --checkpoints")
    group = GroupOptions(backend=backend, seconds=group_seconds)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    presence = presence_in_environment(group.seconds)  # before the task is loaded, which takes time
    asked = asked_for(task, given, task_options=task_options, device=device)
    check_diagnostics(diagnostics, task, has_own_loop=asked.is_function)
    check_backend(group, asked.places, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    folder = None if checkpoints is None else absolute_folder(checkpoints, Path.cwd())
    resume_from = _last(folder, epochs) if folder is not None and resume else None
    if resume and rank == 0:
        say(f"continues from {resume_from}" if resume_from else f"no checkpoint in {checkpoints}: starts at epoch 1")
    spec = asked.spec(
        {name: value for name, value in asked.params.items() if name != "world_size"},
        epochs=epochs,
        world_size=world_size,
        seed=seed,
        checkpoint_folder=folder,
        checkpoint_every_seconds=checkpoint_every,
        resume_from=resume_from,
        diagnostics=diagnostics,
    )
    diary = _Diary(say, resume_from)
    began = time.monotonic()
    history = train_locally(
        spec,
        on_measurement=diary.on_measurement,
        on_facts=diary.on_facts,
        on_part=diary.on_part,
        group=group,
        presence=presence,
        task=asked.trainable,
    )
    if rank != 0:
        return None
    seconds, price = time.monotonic() - began, asked.price
    result = document(
        task,
        spec.params,
        world_size,
        asdict(diary.facts[0].facts),
        [(one.epoch, one.metrics, one.wall_seconds) for one in history],
        trace=diagnostics.trace,
        wall_seconds=seconds,
        cost_usd=cost_nano_usd(world_size, seconds, price.usd_per_slot_hour) / NANO,
        checkpoint=diary.checkpoint,
        drained=False,
    )
    for line in summary_lines(result, price.source):
        say(line)
    return result


class _Diary:
    def __init__(self, say: Callable[[str], None], resume_from: str | None) -> None:
        self.facts: list[RankFacts] = []
        self.checkpoint = resume_from
        self._say = say

    def on_facts(self, rank: RankFacts) -> None:
        self.facts.append(rank)
        self._say(rank_line(rank.rank, rank.device, rank.samples, rank.facts.samples))

    def on_measurement(self, measurement: Measurement) -> None:
        self._say(epoch_line(measurement.epoch, measurement.metrics, measurement.wall_seconds))
        if measurement.checkpoint is not None:
            self._replace_checkpoint(measurement.checkpoint)

    def on_part(self, part: EpochPart) -> None:
        self._say(f"epoch {part.epoch:3}  saved after {part.fraction:.0%} of it")
        self._replace_checkpoint(part.checkpoint)

    def _replace_checkpoint(self, path: str) -> None:
        from trainers.checkpoints.checkpoint import note_latest

        before, self.checkpoint = self.checkpoint, path
        note_latest(path)
        if before is not None and before != path:
            delete_file(before)


def _last(folder: str, epochs: int) -> str | None:
    """Return the checkpoint to continue from, or None. Raises SpecError if it has all epochs."""
    from trainers.checkpoints.checkpoint import epoch_of, latest_checkpoint

    found = latest_checkpoint(folder)
    if found is not None and epoch_of(found) >= epochs:
        problem = f"{found} is of epoch {epoch_of(found)}, so nothing is left of {epochs} epochs. Set more epochs"
        raise SpecError("--epochs", (), problem)
    return found
