"""A warm pool on Ray that several tests use one after the other, and a small driver for single trials."""

import time
from pathlib import Path
from typing import Any

from studies.gangs.on_ray import CLOSE_DEADLINE_SECONDS, RayPool
from studies.gangs.pool_protocol import Event, GangFailed, Measured, SlotsLost, SlotsReady
from trainers.protocol import TrialSpec

FOLDER = str(Path(__file__).parent)
DIGITS = {"learning_rate": 0.1, "batch_per_rank": 64, "architecture": "mlp", "width": 32, "depth": 1}


class LentPool:
    """A pool that stays open when a controller closes it, so that the next test finds its slots warm."""

    def __init__(self, ray_address: str = "", slots: int = 2, **options: Any) -> None:
        self.pool = RayPool(**options)
        self.ray_address = ray_address
        self.slots = slots
        self.ready: set[int] = set()
        self.pool.open(slots)
        self.wait_until_ready()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def wait_until_ready(self, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not all(slot.ready for slot in self.pool._slots.values()) or len(self.ready) < self.slots:
            assert time.monotonic() < deadline, f"only slots {self.ready} came up"
            self._note(self.pool.wait(0.2))
            self.ready |= {number for number, slot in self.pool._slots.items() if slot.ready}
        while events := self.pool.wait(0.01):
            self._note(events)

    def open(self, slots: int) -> None:
        assert slots <= self.slots
        for thread in self.pool._threads.living():
            if thread.name.startswith("gang-"):  # what a trial of the study before still says is not for this one
                thread.join(CLOSE_DEADLINE_SECONDS)
        self.wait_until_ready()
        while events := self.pool.wait(0.01):
            self._note(events)
        self.pool.post(SlotsReady(slots=tuple(range(slots))))

    def wait(self, seconds: float) -> list[Event]:
        events = self.pool.wait(seconds)
        self._note(events)
        return events

    def kill(self, trial_id: int, attempt: int) -> None:
        gang = self.pool._gangs.get(trial_id, attempt)
        self.ready -= set(gang.slots) if gang else set()
        self.pool.kill(trial_id, attempt)

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        self.ready -= set(retire)
        self.pool.end(trial_id, attempt, retire)

    def close(self) -> None:
        for gang in self.pool._gangs:
            self.kill(gang.trial_id, gang.attempt)

    def _note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, SlotsReady):
                self.ready |= set(event.slots)
            elif isinstance(event, SlotsLost):
                self.ready -= set(event.slots)
            elif isinstance(event, GangFailed):
                self.ready = {n for n, slot in self.pool._slots.items() if slot.ready}


def trial_spec(trial: int, folder: Path, *, world_size: int = 2, epochs: int = 3, **changes: Any) -> TrialSpec:
    """A small digits trial."""
    values: dict[str, Any] = {
        "study": "test", "trial": trial, "task": "digits", "params": DIGITS, "training": {"epochs": epochs},
        "world_size": world_size, "milestones": (epochs,), "checkpoint_folder": str(folder / f"trial-{trial}"),
    }  # fmt: skip
    return TrialSpec(**{**values, **changes})


def train_to(pool: Any, spec: TrialSpec, slots: tuple[int, ...], until: int, seconds: float = 60.0) -> list[Event]:
    """Run a trial up to an epoch or its failure, and return what came."""
    pool.start(spec.trial, spec, slots, until)
    return collect(pool, spec, until, seconds)


def collect(pool: Any, spec: TrialSpec, until: int, seconds: float = 60.0) -> list[Event]:
    """What comes of a trial until it reaches an epoch, drains, stops improving or fails."""
    seen: list[Event] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for event in pool.wait(1.0):
            if getattr(event, "trial_id", None) != spec.trial:
                continue
            seen.append(event)
            if isinstance(event, GangFailed):
                return seen
            if isinstance(event, Measured):
                measured = event.measurement
                if measured.epoch >= until or measured.ended or measured.complete:
                    return seen
    raise AssertionError(f"trial {spec.trial} did not come to epoch {until} in {seconds} s: {seen[-2:]}")
