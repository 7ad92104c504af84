"""Decides when a trial writes a checkpoint, what it contains, and which ranks write.

A thread writes files while training continues. Messages that name a file wait until the file is complete (`Pending`).
"""

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from trainers.checkpoints import checkpoint as checkpoints
from trainers.checkpoints.locations import counting
from trainers.checkpoints.shared_checkpoint import open_together, write_shared
from trainers.checkpoints.stored_tensors import Piece
from trainers.data.seeds import SCHEME
from trainers.failures import classified, classify
from trainers.protocol import EpochPart, Measurement, TrainingError, TrialSpec
from trainers.ranks.gather_over_store import StoreGather
from trainers.ranks.process import PeakMemory
from trainers.ranks.process_group import Group
from trainers.trial_settings import Settings

LOOK_SECONDS = 1.0  # seconds between two checks for progress of a write

N = TypeVar("N", Measurement, EpochPart)
Save = Callable[[Mapping[str, Any]], int]


class Write:
    """A file that a thread is writing, or has written."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._size, self._parts = 0, 0
        self._error: TrainingError | None = None

    @property
    def is_done(self) -> bool:
        """Return whether the write has ended, with or without an error."""
        return self._done.is_set()

    @property
    def has_failed(self) -> bool:
        """Return whether the write ended without a complete file."""
        return self.is_done and self._error is not None

    def run(self, work: Callable[[], int]) -> None:
        """Write the file in the calling thread."""
        try:
            with counting(self._count):
                self._size = work()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the thread that waits
            self._error = classify(error)
        finally:
            self._done.set()

    def wait(self, tick: Callable[[], None] = lambda: None) -> int:
        """Wait for the complete file, and return its size in bytes. Raises the TrainingError of a failed write."""
        seen = 0
        while not self._done.wait(LOOK_SECONDS):
            if self._parts != seen:
                seen = self._parts
                tick()
        if self._error is not None:
            raise self._error
        return self._size

    def ends_within(self, seconds: float) -> bool:
        """Return whether the write ends within `seconds`."""
        return self._done.wait(max(seconds, 0.0))

    def _count(self) -> None:
        self._parts += 1


def written(size: int) -> Write:
    """Return the ended `Write` of a file of `size` bytes."""
    write = Write()
    write.run(lambda: size)
    return write


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending(Generic[N]):
    """Message to send once its file is complete. `write` is None if this rank writes no file."""

    news: N
    write: Write | None = None

    def told(self) -> N:
        """Wait for the complete file, and return the message."""
        return self.news if self.write is None else replace(self.news, checkpoint_bytes=self.write.wait())


class FileWriter:
    """Writes one file after another, in the calling thread or in a second thread."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._copies = StateCopies()
        self.last = written(0)

    def write(self, content: Callable[[], Mapping[str, Any]], save: Save, *, in_background: bool) -> Write:
        """Wait for the last file, then write `content`. With `in_background`, a thread writes a copy of `content`.

        Raises the TrainingError of the last file, or of this file if the calling thread writes it.
        """
        self.last.wait(self._tick)
        if not in_background:
            with counting(self._tick), classified():
                return written(save(content()))
        copied = self._copies.of(content())
        write = Write()
        work = threading.Thread(target=write.run, args=(lambda: save(copied),), name="checkpoint", daemon=True)
        work.start()
        self.last = write  # only after the start: a failed start leaves nothing to wait for
        return write

    def close(self) -> None:
        """Wait for the last file. Only `Write.wait` raises its error."""
        with suppress(TrainingError):
            self.last.wait(self._tick)


_RESTS = 20
"""Least training time between checkpoints within an epoch, in durations of the last checkpoint."""


class CheckpointWriter:
    """Writes a trial's checkpoints: on rank 0, or with sharded state a share on every rank."""

    def __init__(
        self,
        spec: TrialSpec,
        settings: Settings,
        group: Group,
        tick: Callable[[], None],
        *,
        memory: PeakMemory | None = None,
        is_shared: bool = False,
    ) -> None:
        self._spec, self._group, self._memory, self._is_shared = spec, group, memory, is_shared
        self._effective_batch = settings.effective_batch
        self._in_background = settings.writes_in_background(group.device.type)
        self._files = FileWriter(tick)
        self._written_at, self._wait_seconds = time.monotonic(), 0.0

    def is_due(self, *, within_epoch: bool = False) -> bool:
        """Return whether the last checkpoint is complete and `checkpoint_every_seconds` have passed.

        Within an epoch, checkpoints take at most a twentieth of the time. After a failed write a checkpoint is due at
        once, so that all ranks raise the error together.
        """
        if self._files.last.has_failed:
            return True
        least_rest = _RESTS * self._wait_seconds if within_epoch else 0.0
        since = time.monotonic() - self._written_at
        return self._files.last.is_done and since >= max(self._spec.checkpoint_every_seconds, least_rest)

    def read(self, path: str, *, together: bool) -> dict[str, Any]:
        """Return the checkpoint to resume from. With `together`, all ranks read, and raise any rank's error."""
        content = open_together(path, self._group) if together else checkpoints.open_checkpoint(path)
        checkpoints.check_belongs(content, self._spec, path, self._effective_batch)
        if self._memory is not None:
            self._memory.include(content["static"].get("peak_memory_bytes", 0.0))
        return content

    def write(
        self, content: Callable[[], Mapping[str, Any]], epoch: int, step: int | None = None, *, goes_on: bool = False
    ) -> tuple[str | None, Write | None]:
        """Write a checkpoint, after `step` steps of an unfinished epoch. Returns its path and `Write`, if any."""
        path = checkpoints.checkpoint_path(self._spec, epoch, step)
        if path is None or not (self._is_shared or self._group.rank == 0):
            return path, None
        began = time.monotonic()
        write = self._files.write(content, self._save_to(path), in_background=goes_on and self._in_background)
        self._written_at = time.monotonic()
        self._wait_seconds = self._written_at - began
        return path, write

    def _save_to(self, path: str) -> Save:
        if not self._is_shared:
            return partial(checkpoints.write_atomically, path=path)
        # Some ranks may write in a thread while others wait here: all must gather in the same way.
        gather = StoreGather(path, self._group) if self._in_background else None
        return partial(write_shared, path=path, group=self._group, gather=gather)

    def content(self, epoch: int, metrics: Mapping[str, float], **parts: Any) -> dict[str, Any]:
        """Return this rank's content of a checkpoint after `epoch` epochs, with `parts` added."""
        static = {"latency_ms": 0.0, "effective_batch": self._effective_batch} | parts.pop("static", {})
        if self._memory is not None:
            static["peak_memory_bytes"] = max(self._memory.peak_bytes(), metrics.get("peak_memory_bytes", 0.0))
        return {
            "format": checkpoints.FORMAT,
            "model": {},
            "optimizer": {},
            "scheduler": {},
            "rng": {"seed": self._spec.seed, "scheme": SCHEME},
            "position": {"epoch": epoch, "step": 0},
            "static": static,
            "spec": checkpoints.essentials(self._spec),
            "metrics": dict(metrics),
            **parts,
        }

    def close(self) -> None:
        """Wait for the last checkpoint."""
        self._files.close()


_Form = tuple[torch.Size, tuple[int, ...], torch.dtype, bool]
_UNCHANGING = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size)


class StateCopies:
    """Copies nested containers with their tensors, reusing the memory of the last copy.

    Copies from a GPU go to pinned memory without waiting. Reuse avoids page faults, which take longer than copies.
    """

    def __init__(self) -> None:
        self._kept: dict[_Form, list[Tensor]] = {}

    def of(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `content` on the CPU. A tensor that occurs twice is copied once."""
        copying = _Copying(self._kept)
        copied = {name: copying.of(value) for name, value in content.items()}
        for device in copying.devices:
            torch.cuda.current_stream(device).synchronize()
        self._kept = copying.used
        return copied


class _Copying:
    def __init__(self, spare: dict[_Form, list[Tensor]]) -> None:
        self._spare = spare
        self._made: dict[tuple[object, ...], Tensor] = {}
        self.used: dict[_Form, list[Tensor]] = defaultdict(list)
        self.devices: set[torch.device] = set()

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, Piece):
            return replace(value, rows=self._of_tensor(value.rows))
        if isinstance(value, MutableMapping):
            same = copy.copy(value)  # keeps the attributes of torch's state dicts
            for name, one in value.items():
                same[name] = self.of(one)
            return same
        if type(value) in {list, tuple}:
            return type(value)(self.of(one) for one in value)
        return value if type(value) in _UNCHANGING else copy.deepcopy(value)

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        if type(tensor) not in {Tensor, nn.Parameter} or tensor.layout != torch.strided:
            return tensor.detach().clone()
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)
        if place not in self._made:
            self._made[place] = self._filled(tensor)
        return self._made[place]

    def _filled(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            self.devices.add(tensor.device)
        form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.is_cuda)
        spare = self._spare.get(form)
        target = spare.pop() if spare else torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self.used[form].append(target)
        target.copy_(tensor.detach(), non_blocking=True)
        filled = target.detach()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(filled, requires_grad=tensor.requires_grad)
        return filled.requires_grad_(tensor.requires_grad)
