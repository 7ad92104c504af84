"""How far a rank has come within an epoch: counted by the thread that trains, read by any other one.

The thread that trains may be inside C code for minutes, so nobody asks it: it leaves numbers behind.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAIN_WORK = 3
"""Work of a training sample in forward passes: one forward, and a backward that costs about two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCount:
    """What a step counter shows at one moment.

    Attributes:
        count: Number of things done since the attempt began: batches loaded, trained and evaluated, files written. A
            rank whose count stands still computes one batch, waits for another rank, or hangs.
        epoch: The epoch that is being trained, from 1; 0 before the first one.
        fraction: Part of that epoch's work that is done, from 0 to 1.
        is_first: Whether the rank does something for the first time in this attempt, as it loads data, builds the
            model or passes a batch of a new size, for which code may have to be compiled.
    """

    count: int = 0
    epoch: int = 0
    fraction: float = 0.0
    is_first: bool = True


class StepCounter:
    """Counts what one rank does in one attempt. Costs less than a microsecond per batch.

    Only the thread that trains calls the methods that count; `read` may be called by any thread.
    """

    def __init__(self) -> None:
        self._count = 0
        self._epoch = 0
        self._work = 0.0
        self._done = 0.0
        self._kind: tuple[str, int] | None = ("start", 0)
        self._known: set[tuple[str, int]] = set()
        self._is_first = True

    def begin_epoch(self, epoch: int, work: float, done: float = 0.0) -> None:
        """Begin an epoch.

        Args:
            epoch: Number of the epoch, from 1.
            work: Work of this rank in the epoch, in forward passes of one sample.
            done: Part of it that an earlier attempt has done.
        """
        self._done, self._work, self._epoch = done, work, epoch

    def begin(self, kind: str, size: int = 0) -> None:
        """Begin something that `done` ends.

        Args:
            kind: What it is.
            size: Number of samples in the batch; a new size may need another compilation.
        """
        self._kind = (kind, size)
        self._is_first = self._kind not in self._known

    def tick(self) -> None:
        """Count a part of what was begun."""
        self._count += 1

    def done(self, work: float = 0.0) -> None:
        """Count the end of what was begun, and so much work in forward passes of one sample."""
        self._count += 1
        self._done += work
        if self._kind is not None:
            self._known.add(self._kind)
            self._kind = None
        self._is_first = False

    def read(self) -> StepCount:
        """Return what the counter shows now."""
        fraction = min(self._done / self._work, 1.0) if self._work > 0 else 0.0
        return StepCount(count=self._count, epoch=self._epoch, fraction=fraction, is_first=self._is_first)
