"""When a trial writes a checkpoint, what is in it, and which ranks write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from trainers import checkpoint as checkpoints
from trainers.background_writes import FileWriter, Save, Write
from trainers.ddp import Group
from trainers.process import PeakMemory
from trainers.protocol import TrialSpec
from trainers.scaling import LearningRate
from trainers.seeds import SCHEME
from trainers.settings import Settings
from trainers.shared_checkpoint import write_shared
from trainers.store_gather import StoreGather
from trainers.stored_state import given_optimizer, given_weights
from trainers.training_state import TrainingState

_RESTS = 20
"""How many times as long as training waited for a checkpoint it goes on before the next one within an epoch."""


class CheckpointWriter:
    """Writes a trial's checkpoints: rank 0 alone, or where state is shared out each rank its share.

    Args:
        spec: The trial.
        settings: The trial's options.
        rate: The learning rate of every step.
        effective_batch: Samples per optimizer step.
        group: This rank's place in the gang.
        memory: Peak memory of the trial on this rank.
        tick: Called while this thread waits for a file, as long as it is being written.
    """

    def __init__(
        self,
        spec: TrialSpec,
        settings: Settings,
        rate: LearningRate,
        effective_batch: int,
        group: Group,
        *,
        memory: PeakMemory,
        tick: Callable[[], None],
    ) -> None:
        self._spec, self._rate, self._effective_batch, self._group = spec, rate, effective_batch, group
        self._is_shared = group.world_size > 1 and settings.shard != "none"
        self._in_background = settings.writes_in_background(group.device.type)
        self._files, self._memory = FileWriter(tick), memory
        self._written_at, self._wait_seconds = time.monotonic(), 0.0

    def is_due(self, *, within_epoch: bool = False) -> bool:
        """Return whether `checkpoint_every_seconds` have passed since the last checkpoint, which is whole by now.

        Within an epoch training waits for checkpoints no more than a twentieth of the time. After one that could not be
        written the next one is due at once: where all ranks are about to write, all of them can raise why it failed.
        """
        if self._files.has_failed:
            return True
        least_rest = _RESTS * self._wait_seconds if within_epoch else 0.0
        since = time.monotonic() - self._written_at
        return not self._files.is_busy and since >= max(self._spec.checkpoint_every_seconds, least_rest)

    def write(
        self, state: TrainingState, part: Mapping[str, Any] | None = None, *, goes_on: bool = False
    ) -> tuple[str | None, Write | None]:
        """Write a checkpoint, after waiting for the last one to be whole.

        The model has the averaged weights, if there are any.

        Args:
            state: State of the trial after an epoch, or within the next one.
            part: What is kept of the next epoch; None after an epoch.
            goes_on: Whether the caller trains on at once, and waits for the file where it has to be whole.

        Returns:
            Its path, None for a trial that writes none; and the file, None on a rank that writes none.

        Raises:
            CheckpointError: Something in the state cannot be saved.
            StorageError: The disk or the folder does not allow it.
        """
        of_epoch = (state.epoch, None) if part is None else (state.epoch + 1, state.step)
        path = checkpoints.checkpoint_path(self._spec, *of_epoch)
        if path is None or not (self._is_shared or self._group.rank == 0):
            return path, None
        began = time.monotonic()
        write = self._files.write(
            lambda: self.content(state, part), self._save_to(path), in_background=goes_on and self._in_background
        )
        self._written_at = time.monotonic()
        self._wait_seconds = self._written_at - began
        return path, write

    def _save_to(self, path: str) -> Save:
        if not self._is_shared:
            return partial(checkpoints.write_atomically, path=path)
        # A rank that goes on writes in a thread, and one that waits here does not: both gather in the same way.
        gather = StoreGather(path, self._group) if self._in_background else None
        return partial(write_shared, path=path, group=self._group, gather=gather)

    def content(self, state: TrainingState, part: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what this rank gives to a checkpoint, see `trainers.checkpoint`."""
        peak_bytes = max(self._memory.peak_bytes(), state.metrics.get("peak_memory_bytes", 0.0))
        return ({} if part is None else {"part": dict(part)}) | {
            "format": checkpoints.FORMAT,
            "model": given_weights(state.module),
            "optimizer": given_optimizer(state.optimizer),
            "scheduler": asdict(replace(self._rate, own=None)),
            "rng": {"seed": self._spec.seed, "scheme": SCHEME},
            "position": {"epoch": state.epoch, "step": state.step, **state.place.told()},
            "static": {
                "latency_ms": state.latency_ms,
                "effective_batch": self._effective_batch,
                "peak_memory_bytes": peak_bytes,
            },
            "spec": checkpoints.essentials(self._spec),
            "metrics": state.metrics,
            "engine": state.engine_state(),
        }

    def close(self) -> None:
        """Wait for the last checkpoint."""
        self._files.close()
