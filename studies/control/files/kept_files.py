"""Chooses which checkpoints to keep (best models, and files for resuming trials), and deletes the others."""

import logging
import queue
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from studies.results.pareto import dominates
from studies.search.observations import Values
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import MissingLibraryError, is_url


@dataclass(frozen=True, kw_only=True, slots=True)
class Milestone:
    """An epoch with a saved model, its signed objectives (smaller is better) and its file."""

    trial_id: int
    epoch: int
    values: Values
    path: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Files to delete, and (trial id, epoch) pairs whose models are no longer offered to users."""

    files: tuple[str, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()


@dataclass(kw_only=True, slots=True)
class CheckpointKeeper:
    """Records the reasons to keep each file: "archive", "front", "resume", and "baseline" with a trial's id."""

    _members: dict[str, list[Milestone]] = field(default_factory=lambda: defaultdict(list))
    _reasons: dict[str, set[str]] = field(default_factory=dict)
    _resume: dict[int, str] = field(default_factory=dict)
    _bytes: dict[str, int] = field(default_factory=dict)
    total_bytes: int = 0

    def weigh(self, path: str, size: int) -> None:
        """Record a kept file's size in bytes; ignores other files."""
        if path in self._reasons:
            self.total_bytes += size - self._bytes.get(path, 0)
            self._bytes[path] = size

    @property
    def archive(self) -> list[Milestone]:
        """Non-dominated models of all trials and epochs, oldest first."""
        return self._members["archive"]

    def offer(self, new: Milestone, to: str) -> tuple[bool, Released]:
        """Offer a model to the list `to`. Of equal models, "front" keeps all, other lists the earliest.

        Returns whether the list took the model, and files to delete.
        """
        members = self._members[to]
        beaten = any(dominates(m.values, new.values) or (to != "front" and m.values == new.values) for m in members)
        if beaten:
            return False, Released()
        leaving = [m for m in members if dominates(new.values, m.values)]
        self._members[to] = [m for m in members if m not in leaving] + [new]
        if new.path is not None:
            self._reasons.setdefault(new.path, set()).add(to)
        return True, self._release([(m, to) for m in leaving])

    def go_on_from(self, trial_id: int, path: str | None) -> Released:
        """Set or clear the file from which a trial resumes; returns files to delete."""
        before = self._resume.pop(trial_id, None)
        if path is not None:
            self._resume[trial_id] = path
            self._reasons.setdefault(path, set()).add("resume")
        if before is None or before == path:
            return Released()
        return Released(files=self._drop(before, "resume"))

    def frees_bytes(self, trial_id: int) -> int:
        """Return the bytes that pruning the trial would free."""
        path = self._resume.get(trial_id, "")
        return self._bytes.get(path, 0) if self._reasons.get(path) == {"resume"} else 0

    def other_than(self, path: str, trial_id: int, epoch: int) -> Milestone | None:
        """Return the trial's latest saved model up to `epoch` in a file other than `path`, or None."""
        kept = [
            milestone
            for members in self._members.values()
            for milestone in members
            if milestone.trial_id == trial_id and milestone.epoch <= epoch and milestone.path not in {None, path}
        ]
        return max(kept, key=lambda milestone: milestone.epoch, default=None)

    def _release(self, leaving: list[tuple[Milestone, str]]) -> Released:
        files: list[str] = []
        epochs = []
        for milestone, reason in leaving:
            if milestone.path is None:
                continue
            files += self._drop(milestone.path, reason)
            if not self._reasons.get(milestone.path, set()) - {"resume"}:
                epochs.append((milestone.trial_id, milestone.epoch))
        return Released(files=tuple(files), epochs=tuple(epochs))

    def _drop(self, path: str, reason: str) -> tuple[str, ...]:
        reasons = self._reasons.get(path, set())
        reasons.discard(reason)
        if reasons:
            return ()
        self._reasons.pop(path, None)
        self.total_bytes -= self._bytes.pop(path, 0)
        return (path,)


WORKERS = 4  # number of simultaneous deletions in an object store
FINISH_SECONDS = 30.0
"""Longest wait for deletions at the end of a study; `automl gc` finds files that remain."""
_LOOK_SECONDS = 0.05
log = logging.getLogger(__name__)


def delete_file(path: str) -> None:
    """Delete a checkpoint. A failure is only logged, since it costs only disk space."""
    try:
        place_of(path).delete(path)
    except (OSError, MissingLibraryError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        log.warning("cannot delete %s, which is no longer needed (%s)", path, reason)


class Deleter:
    """Deletes local files at once, and files in an object store in daemon threads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._changing = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []

    def delete(self, path: str) -> None:
        """Delete a checkpoint, without waiting for an object store."""
        if not is_url(path):
            delete_file(path)
            return
        with self._changing:
            self._unfinished += 1
        self._queue.put(path)
        if len(self._threads) < WORKERS:
            thread = threading.Thread(target=self._work, name="deletes", daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait for deletions, at most `seconds`; logs the number of unfinished deletions."""
        deadline = time.monotonic() + seconds
        while self._unfinished and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if left := self._unfinished:
            log.warning("%d checkpoints that are no longer needed are not deleted yet; `automl gc` lists them", left)

    def _work(self) -> None:
        while True:
            path = self._queue.get()
            try:
                delete_file(path)
            except Exception:
                log.exception("cannot delete %s", path)
            finally:
                with self._changing:
                    self._unfinished -= 1
