"""Which points `automl confirm` trains again, and what that will cost as far as the study's own trainings tell."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from automl.exporting.points import named_point
from automl.launching.preparing import Prepared
from reports.wording import duration, plural, usd
from studies import analysis, feasibility
from studies.money.ledger import cost_nano_usd
from studies.recommendation import ranked_points, recommended, takeable
from studies.records import NANO, StudyRecord, TrialRecord
from studies.storage.engine import StoreError
from trainers.protocol import TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A model to confirm: a trial after one of its epochs."""

    trial: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.trial}@{self.epoch}"


def chosen_points(record: StudyRecord, names: Sequence[str], epochs: int) -> list[Point]:
    """Return the points that are meant, in that order; without names those that a recommendation names.

    Args:
        record: Study as committed.
        names: `12@9`; `12` for its last kept model, or else its last epoch; best, cheapest or knee.
        epochs: Epochs of a full training.

    Raises:
        StoreError: There is no such trial or epoch, or nothing to choose from.
    """
    if not names:
        return _contenders(record)
    return list(dict.fromkeys(_point(record, name, epochs) for name in names))


def _point(record: StudyRecord, name: str, epochs: int) -> Point:
    number, epoch = named_point(record, name)
    started = {trial.number: trial for trial in record.started}
    if number not in started:
        raise StoreError(f"trial: found {number}, allowed: 0 to {len(started) - 1}")
    if epoch is None:
        done = started[number].epochs
        kept = [one.epoch for one in done if one.checkpoint is not None]
        epoch = max(kept) if kept else done[-1].epoch if done else epochs
    if not 1 <= epoch <= epochs:
        raise StoreError(f"trial: found {name!r}, allowed: epochs 1 to {epochs}, such as {number}@{epochs}")
    return Point(trial=number, epoch=epoch)


def _contenders(record: StudyRecord) -> list[Point]:
    """The recommended model, its neighbours, and the best one: what a person chooses between."""
    found = recommended(record)
    best = ranked_points(record, takeable(record) or analysis.archive(record))[:1]
    named = [] if found is None else [found.point, found.better, found.worse]
    points = [Point(trial=one.trial, epoch=one.epoch) for one in (*named, *best) if one is not None]
    if not points:
        why = feasibility.nothing_feasible(record)
        empty = f"the archive of {record.name} is empty{f' since {why}' if why else ''}"
        raise StoreError(f"trial: found none, and {empty}; allowed: name trials")
    return list(dict.fromkeys(points))


def announcement(
    record: StudyRecord, prepared: Prepared, points: Sequence[Point], specs: Sequence[TrialSpec], seeds: int
) -> str:
    """Return what will be trained, and what that will probably cost."""
    price, slots = prepared.place.usd_per_slot_hour, slots_for(prepared, specs)
    seconds = expected_seconds(record, specs, slots)
    line = record.budget["usd"]
    left = "" if line.limit is None else f"; {usd(max(line.limit - line.spent, 0.0))} of the budget is left"
    names = ", ".join(map(str, points))
    return (
        f"confirm trains {names} as {'it was' if len(points) == 1 else 'they were'} trained, with "
        f"{plural(seeds, 'fresh seed')} each: about {usd(cost_nano_usd(slots, seconds, price) / NANO)} "
        f"({duration(seconds)} on {plural(slots, 'slot')}), charged to {record.name}{left}"
    )


def slots_for(prepared: Prepared, specs: Sequence[TrialSpec]) -> int:
    """Return the number of slots on which specs are trained."""
    return min(prepared.place.slots, sum(spec.world_size for spec in specs))


def expected_seconds(record: StudyRecord, specs: Sequence[TrialSpec], slots: int) -> float:
    """Return how long the pool will be open: the processes come up, then each slot takes the next training.

    Starts and epochs are expected to last as long as in the search; the first start on a slot, in a new process, as
    long as the first ones there.
    """
    starts = [charge.seconds for charge in record.charges if charge.kind == "start"]
    first, later = (fmean(starts[:slots]), median(starts)) if starts else (0.0, 0.0)
    trials = {trial.number: trial for trial in record.started}
    free = [(_warm_up_seconds(record), slot) for slot in range(slots)]
    heapq.heapify(free)
    fresh = set(range(slots))
    for spec in specs:
        held = [heapq.heappop(free) for _ in range(spec.world_size)]
        begins = max(moment for moment, _ in held)
        start = first if fresh.intersection(slot for _, slot in held) else later
        ends = begins + start + _train_seconds(trials[spec.trial], max(spec.test_at))
        for _, slot in held:
            fresh.discard(slot)
            heapq.heappush(free, (ends, slot))
    return max(moment for moment, _ in free)


def _warm_up_seconds(record: StudyRecord) -> float:
    """Time for which a slot of the search had waited before its first trial: that of its process."""
    return next((charge.seconds for charge in record.charges if charge.kind == "idle"), 0.0)


def _train_seconds(trial: TrialRecord, epochs: int) -> float:
    """Duration of the first epochs of a trial; those that it has not trained are taken for as long as the mean."""
    seconds = [epoch.wall_seconds for epoch in trial.epochs]
    if not seconds:
        return 0.0
    return sum(seconds[:epochs]) + max(epochs - len(seconds), 0) * fmean(seconds)


def by_trial(points: Sequence[Point]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each trial with the epochs at which it is confirmed, ascending: one training passes all of them."""
    epochs: dict[int, list[int]] = {}
    for point in points:
        epochs.setdefault(point.trial, []).append(point.epoch)
    for trial, its_epochs in epochs.items():
        yield trial, tuple(sorted(its_epochs))
