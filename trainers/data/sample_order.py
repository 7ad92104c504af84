"""Batches of an epoch, from shuffled samples or from a stream."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from torch import Tensor

from trainers.data.epoch_plan import EpochLayout, Pass, epoch_layout, passes_of, work_of
from trainers.data.samples import Samples
from trainers.data.seeds import permutation
from trainers.data.streams import Sharing, Step, StreamSamples
from trainers.loop.step_counter import TRAIN_WORK
from trainers.trial_settings import Settings


class OrderedFeed:
    """Batches of a dataset of known length, in a new random order for each pass over the data."""

    def __init__(self, samples: Samples, layout: EpochLayout, sharing: Sharing) -> None:
        self._samples, self._layout, self._sharing = samples, layout, sharing
        self._order: tuple[int, Tensor] | None = None  # number and order of an unfinished pass

    def begin(self, epoch: int, steps: int) -> tuple[float, float]:
        """Plan an epoch. Returns the work of it and of its first `steps` steps, in forward passes of one sample."""
        number, first = self._layout.place(epoch)
        if self._order is not None and self._order[0] == number:
            order = self._order[1]
        else:
            order = permutation(len(self._samples), seed=self._sharing.seed, epoch=number)
        self._order = (number, order) if self._layout.place(epoch + 1)[0] == number else None
        whole = self._sharing.plan(self._layout.part(order, first))
        self._first = passes_of(whole, steps)
        self._plan = whole[self._first :]
        self._passed = 0
        self._steps = steps + sum(one.ends_step for one in self._plan)
        work = work_of(whole)
        return work, work - work_of(self._plan)

    @property
    def next_samples(self) -> int:
        """Number of samples in the next forward pass; 0 after the last pass."""
        return self._plan[self._passed].samples if self._passed < len(self._plan) else 0

    def passes(self) -> Iterator[tuple[Pass, Any, Any]]:
        """Yield the epoch's remaining passes with inputs and targets."""
        batches = self._samples.batches([one.indices for one in self._plan], first=self._first)
        for one in self._plan:
            inputs, targets = next(batches)
            self._passed += 1
            yield one, inputs, targets

    def trained(self, steps: int) -> float | None:
        """Return the fraction of the epoch done after `steps` steps; None after the last step."""
        return steps / self._steps if steps < self._steps else None


@dataclass(kw_only=True, slots=True)
class StreamPlace:
    """A trial's position in its stream. `last_steps` is the length of the last whole pass, or 0."""

    passes: int = 0
    steps: int = 0
    last_steps: int = 0

    @classmethod
    def of(cls, position: Mapping[str, int]) -> "StreamPlace":
        """Return the position that a checkpoint stores. Ignores other numbers."""
        return cls(**{name: position.get(f"stream_{name}", 0) for name in cls.__slots__})

    def told(self) -> dict[str, int]:
        """Return the position as numbers for a checkpoint; empty if the trial reads no stream."""
        told = {f"stream_{name}": value for name, value in asdict(self).items()}
        return told if any(told.values()) else {}

    def end_pass(self) -> None:
        """Begin the next pass."""
        self.passes, self.steps, self.last_steps = self.passes + 1, 0, self.steps


class StreamFeed:
    """Batches of a stream. An epoch is a pass over it, or `epoch_steps` steps. Updates the trial's `place`."""

    def __init__(self, samples: StreamSamples, epoch_steps: int | None, sharing: Sharing, place: StreamPlace) -> None:
        self._samples, self._epoch_steps, self._sharing, self._place = samples, epoch_steps, sharing, place
        self._pass: Iterator[Step] | None = None
        self.next_samples = sharing.batch_per_rank

    def begin(self, epoch: int, steps: int) -> tuple[float, float]:  # noqa: ARG002 - a stream continues where it stopped
        """Begin an epoch, and return its work as in `OrderedFeed`; the last pass predicts the length of the next."""
        self._steps = steps
        of_step = TRAIN_WORK * self._sharing.batch_per_rank * self._sharing.accumulate
        return float(self._planned() * of_step), float(min(steps, self._planned()) * of_step)

    def passes(self) -> Iterator[tuple[Pass, Any, Any]]:
        """Yield the remaining passes, until the epoch's steps are done or the stream ends."""
        while self._epoch_steps is None or self._steps < self._epoch_steps:
            if self._pass is None:
                self._pass = self._samples.steps(self._sharing, self._place.passes + 1, self._place.steps)
            step = next(self._pass, None)
            if step is None:
                self._pass = None
                self._place.end_pass()
                if self._epoch_steps is None:
                    return
                continue
            for one, batch in step:
                yield (one, *self._samples.on_device(batch))

    def trained(self, steps: int) -> float | None:
        """Count a step. Returns the fraction of the epoch done, or None after a planned last step."""
        self._steps = steps
        self._place.steps += 1
        if self._epoch_steps is not None and steps >= self._epoch_steps:
            return None
        return steps / max(self._planned(), steps + 1) if self._planned() else 0.0

    def _planned(self) -> int:
        return self._place.last_steps if self._epoch_steps is None else self._epoch_steps


Feed: TypeAlias = OrderedFeed | StreamFeed
"""Source of one rank's passes, with inputs and targets on the device."""


def layout_of(samples: Samples | StreamSamples, settings: Settings) -> EpochLayout | None:
    """Return the division of samples into epochs; None if each epoch ends with the stream."""
    if not isinstance(samples, StreamSamples):
        return epoch_layout(len(samples), settings.effective_batch, settings.samples_per_epoch)
    if isinstance(settings.samples_per_epoch, str):
        return None
    steps = math.ceil(settings.samples_per_epoch / settings.effective_batch)
    return epoch_layout(steps * settings.effective_batch, settings.effective_batch, "auto")
