"""`automl confirm`: trains models again with new seeds, and measures them on unseen data."""

import heapq
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from automl.exporting.origins import named_point
from automl.launching.expected_cost import warm_up_seconds
from automl.launching.prepared_study import Prepared, prepare
from automl.launching.study_run import pool_of
from automl.signals import draining_signals, private_files
from automl.stored.open_store import from_store, started_trial
from automl.stored.reporting import refresh
from reports.phrases import duration, plural, usd
from search_spaces.drawing import fresh_seed
from search_spaces.untrusted_text import last_line
from studies.control.assembly import checkpoint_folder, setup_of
from studies.control.files.orphans import mark_used
from studies.control.machine.confirmation import ConfirmingMachine, Retrained, train_again
from studies.control.machine.study_setup import StudySetup
from studies.gangs.on_ray import RayPool
from studies.gangs.pool_protocol import DrainRequested, PriceSet
from studies.money.ledger import cost_nano_usd
from studies.records.records import NANO, StudyRecord, TrialRecord
from studies.results import analysis, constraints
from studies.results.confirmations import spread, tested, without_errors
from studies.results.recommendation import ranked_points, recommended, takeable
from studies.search.policy import Policy
from studies.search.pruners.none import NoPruner
from studies.storage.leases import lease as leases
from studies.storage.leases.dead_pools import note_overshoot, settle_dead_pools
from studies.storage.leases.processes import marked
from studies.storage.reading.reader import confirmed_since_begin_of, load_study
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views.mirror import catch_up
from studies.storage.writing.retrying import retry
from trainers.checkpoints.locations import joined, trial_folder
from trainers.protocol import OUR_METRICS, TEST_PREFIX, TrialSpec

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A model to confirm: a trial after an epoch."""

    trial: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.trial}@{self.epoch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """Trainings of a confirmation: one per trial and seed, each up to the trial's last epoch to confirm."""

    record: StudyRecord
    prepared: Prepared
    points: Sequence[Point]
    specs: Sequence[TrialSpec]
    seeds: int

    @property
    def trials(self) -> dict[int, TrialRecord]:
        return {trial.number: trial for trial in self.record.started if trial.number is not None}

    @property
    def slots(self) -> int:
        return min(self.prepared.place.slots, sum(spec.world_size for spec in self.specs))

    @property
    def seconds(self) -> float:
        return _expected_seconds(self.record, self.trials, self.specs, self.slots)

    @property
    def usd(self) -> float:
        return cost_nano_usd(self.slots, self.seconds, self.prepared.place.usd_per_slot_hour) / NANO

    def announced(self) -> str:
        record, line, points = self.record, self.record.budget["usd"], self.points
        left = "" if line.limit is None else f"; {usd(max(line.limit - line.spent, 0.0))} of the budget is left"
        return (
            f"confirm trains {', '.join(map(str, points))} as {'it was' if len(points) == 1 else 'they were'} trained, "
            f"with {plural(self.seeds, 'fresh seed')} each: about {usd(self.usd)} ({duration(self.seconds)} on "
            f"{plural(self.slots, 'slot')}), charged to {record.name}{left}"
        )


def expected(store: Store, study: str, names: Sequence[str], *, seeds: int) -> dict[str, Any]:
    """Return the trainings and expected cost of `confirm`. Raises its errors."""
    plan = _planned(store, study, names, seeds=seeds)
    return {
        "study": study,
        "points": [str(point) for point in plan.points],
        "trainings": len(plan.specs),
        "expected_usd": plan.usd,
        "message": plan.announced(),
    }


def confirm(
    store: Store,
    study: str,
    names: Sequence[str],
    *,
    seeds: int,
    keeps_models: bool,
    say: Say,
    slots: int | None = None,
    job_id: int | None = None,
    most_nano_usd: Callable[[], int] | None = None,
) -> dict[str, Any]:
    """Train models again with new seeds and the same schedule, and measure them on the test part.

    Each training ends at its model's epoch; models of one trial share a training. The study is charged, even beyond its
    budget (kind `confirm`). A job skips trainings that its earlier runs finished; other calls train all again.

    Args:
        names: Models `TRIAL@EPOCH`; empty takes the recommended models.
        seeds: Number of trainings for each model. Every call uses the same seeds.
        keeps_models: Save the models for `automl export --ensemble`.
        slots: Default: the spec's number.
        job_id: Queued job that pays; None charges the study's own job.
        most_nano_usd: Returns the cost limit in nano-dollars. Called after charges of dead controllers are settled.

    Raises:
        StoreError: There is no such study or trial, or a controller runs it.
        SpecError: The spec does not work on this machine.
        PoolError: The slots are unavailable.
        SpentError: The cost limit is reached.
    """
    plan = _planned(store, study, names, seeds=seeds, slots=slots, keeps_models=keeps_models)
    done = _trained_before(store, plan, job_id)
    over = [one.spec for one in done]
    left = replace(plan, specs=[one for one in plan.specs if one not in over])
    if done:
        say(f"{len(done)} of {plural(len(plan.specs), 'training')} had ended before")
    if left.specs:
        say(left.announced())
    trained, cost = _train(store, left, say=say, job_id=job_id, most_nano_usd=most_nano_usd)
    done += trained
    catch_up(store, study, ("mlflow",))  # no controller does it; failures appear in `automl status`
    refresh(store, study, plan.prepared.base_folder)
    rows = [_row_of(plan, point, [one for one in done if one.spec.trial == point.trial]) for point in plan.points]
    after = load_study(store, study)
    found = recommended(after)
    return {
        "study": study,
        "seeds": seeds,
        "epochs": plan.prepared.spec.training.epochs,
        "measured_on": measured_on(rows),
        "cost_usd": cost / NANO,
        "study_cost_usd": after.cost_nano_usd / NANO,
        "trials": rows,
        "recommendation": None if found is None else analysis.jsonable(found.plain()),
    }


def chosen_points(record: StudyRecord, names: Sequence[str], epochs: int) -> list[Point]:
    """Return the named or the recommended models. Raises StoreError for wrong names."""
    if not names:
        return _contenders(record)
    return list(dict.fromkeys(_point(record, name, epochs) for name in names))


def _point(record: StudyRecord, name: str, epochs: int) -> Point:
    number, epoch = named_point(record, name)
    done = started_trial(record, number).epochs
    if epoch is None:
        kept = [one.epoch for one in done if one.checkpoint is not None]
        epoch = max(kept) if kept else done[-1].epoch if done else epochs
    if not 1 <= epoch <= epochs:
        raise StoreError(f"{name}: {record.name} trains epochs 1 to {epochs}. Name for example {number}@{epochs}")
    return Point(trial=number, epoch=epoch)


def _contenders(record: StudyRecord) -> list[Point]:
    """Return the recommended model, its neighbours on the Pareto front, and the best-ranked model."""
    found = recommended(record)
    best = ranked_points(record, takeable(record) or analysis.archive(record))[:1]
    named = [] if found is None else [found.point, found.better, found.worse]
    points = [Point(trial=one.trial, epoch=one.epoch) for one in (*named, *best) if one is not None]
    if not points:
        why = constraints.nothing_feasible(record)
        reason = f" ({why})" if why else ""
        cure = f"Name the trials to confirm, for example `automl confirm {record.name} 3`"
        raise StoreError(f"the study {record.name} has no saved models to choose from{reason}. {cure}")
    return list(dict.fromkeys(points))


def _planned(
    store: Store, study: str, names: Sequence[str], *, seeds: int, slots: int | None = None, keeps_models: bool = False
) -> _Plan:
    row = store.require(study)
    record = load_study(store, study)
    spec = from_store(row.spec, study).model_copy(update={"store": store.url})
    if slots is not None:
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={"slots": slots})})
    prepared = prepare(spec, source=study, base_folder=Path(row.base_folder))
    prepared = replace(prepared, place=prepared.place.at_price(row.usd_per_slot_hour))
    points = chosen_points(record, names, spec.training.epochs)
    epochs: dict[int, set[int]] = defaultdict(set)
    for point in points:
        epochs[point.trial].add(point.epoch)
    plan = _Plan(record=record, prepared=prepared, points=points, specs=(), seeds=seeds)
    folder = checkpoint_folder(spec, prepared.base_folder, record.uid) if keeps_models else None
    specs = [
        _spec(_setup(prepared, prepared.place.slots), plan.trials[number], tuple(sorted(its_epochs)), n, folder)
        for number, its_epochs in epochs.items()
        for n in range(seeds)
    ]
    return replace(plan, specs=specs)


def _setup(prepared: Prepared, slots: int) -> StudySetup:
    place = replace(prepared.place, slots=slots)
    return setup_of(prepared.spec, place, Policy(pruner=NoPruner()), prepared.base_folder, None)


def _spec(setup: StudySetup, trial: TrialRecord, epochs: tuple[int, ...], n: int, folder: str | None) -> TrialSpec:
    """Return the n-th confirmation training of a trial, up to the last of `epochs`."""
    number = trial.number or 0
    seed = fresh_seed("confirm", setup.seed, number, n)
    return replace(
        setup.trial_spec(number, trial.declared_params, trial.world_size),
        proposed=trial.asked if setup.learns_space else None,
        seed=seed,
        test_at=epochs,
        milestones=() if folder is None else epochs,
        checkpoint_folder=None if folder is None else joined(folder, trial_folder(number, seed)),
        checkpoint_every_seconds=math.inf,
    )


def _expected_seconds(
    record: StudyRecord, trials: Mapping[int, TrialRecord], specs: Sequence[TrialSpec], slots: int
) -> float:
    """Estimate the seconds from the first start to the last end, with the search's start times."""
    starts = [charge.seconds for charge in record.charges if charge.kind == "start"]
    first, later = (fmean(starts[:slots]), median(starts)) if starts else (0.0, 0.0)
    free = [(warm_up_seconds(record), slot) for slot in range(slots)]
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


def _train_seconds(trial: TrialRecord, epochs: int) -> float:
    seconds = [epoch.wall_seconds for epoch in trial.epochs]
    if not seconds:
        return 0.0
    return sum(seconds[:epochs]) + max(epochs - len(seconds), 0) * fmean(seconds)


def _trained_before(store: Store, plan: _Plan, job_id: int | None) -> list[Retrained]:
    """Return the trainings that the job's earlier runs finished; empty without a job."""
    if job_id is None:
        return []
    rows = confirmed_since_begin_of(store, store.require(plan.record.name).id, job_id)
    by_point = {(row.trial_id, row.seed, row.epoch): row for row in rows}
    done = []
    for spec in plan.specs:
        found = (by_point.get((plan.trials[spec.trial].id, spec.seed, epoch)) for epoch in spec.test_at)
        points = tuple(row for row in found if row is not None)
        if len(points) == len(spec.test_at):
            done.append(Retrained(spec=spec, points=points))
    return done


def _train(
    store: Store, plan: _Plan, *, say: Say, job_id: int | None, most_nano_usd: Callable[[], int] | None
) -> tuple[list[Retrained], int]:
    """Train while holding the study's lease. Returns the results and the cost in nano-dollars."""
    prepared = plan.prepared
    spec, pool = prepared.spec, pool_of(prepared)
    row = store.require(spec.study)

    def ended(one: Retrained) -> None:
        for line in _lines_of(one):
            say(line)

    with private_files(), marked(row.uid), _held(store, row.id, pool, job_id) as lease:
        machine = ConfirmingMachine(
            _setup(prepared, plan.slots),
            plan.specs,
            {number: trial.id for number, trial in plan.trials.items()},
            pool=pool,
            most_nano_usd=None if most_nano_usd is None else most_nano_usd(),
        )
        if any(one.checkpoint_folder is not None for one in plan.specs):
            mark_used(checkpoint_folder(spec, prepared.base_folder, row.uid), store, lease)
        drain = lambda _reason: pool.post(DrainRequested(reason="interrupted"))  # noqa: E731
        try:
            with draining_signals(drain, say, "the running trainings are stopped, their time is charged"):
                done = train_again(machine, pool, store, study_id=row.id, lease_token=lease.token, on_end=ended)
                return done, machine.spent_nano_usd
        finally:
            retry(lambda: note_overshoot(store, lease))


@contextmanager
def _held(store: Store, study_id: int, pool: RayPool, job_id: int | None) -> Iterator[leases.Lease]:
    lease = leases.acquire(store, study_id, job_id=job_id)
    if isinstance(lease, leases.Holder):
        raise StoreError(f"the study still runs in {lease}. Stop the study with `automl stop`, or wait for its end")
    stopped = threading.Event()

    def stop() -> None:
        if not stopped.is_set():
            stopped.set()
            pool.post(DrainRequested(reason="stopped", message="automl stop ended it"))

    def lost() -> None:
        pool.post(DrainRequested(reason="error", message="another controller has taken over this study"))

    def look_for_price() -> None:
        price = store.price_that_was_set(study_id)
        if price is not None:
            pool.post(PriceSet(usd_per_slot_hour=price))

    with leases.kept(store, lease, on_stop=stop, on_requests=look_for_price, on_lost=lost):
        settle_dead_pools(store, lease)
        yield lease


def _row_of(plan: _Plan, point: Point, runs: Sequence[Retrained]) -> dict[str, Any]:
    record, trial = plan.record, plan.trials[point.trial]
    found = [run.at(point.epoch) for run in runs]
    good = [one for one, run in zip(found, runs, strict=True) if not run.failure]
    saw = next((epoch.metrics for epoch in trial.epochs if epoch.epoch == point.epoch), {})
    objectives = [objective.metric for objective in record.objectives]
    measured = saw or (good[0].metrics if good else {})
    own = [
        name
        for name in without_errors(measured)
        if name == "val_loss" or (name not in OUR_METRICS and TEST_PREFIX not in name)
    ]
    names = list(dict.fromkeys([*objectives, *(one.metric for one in record.constraints), *own]))
    paid = [{"cost_usd": one.cost_nano_usd / NANO, "wall_seconds": one.wall_seconds} for one in good]
    return {
        "trial": point.trial,
        "epoch": point.epoch,
        "params": dict(trial.params),
        "world_size": trial.world_size,
        "searched_epochs": len(trial.epochs),
        "search": {name: analysis.jsonable(saw[name]) for name in names if name in saw},
        "validation": _spreads(names, [{**one.metrics, **its} for one, its in zip(good, paid, strict=True)]),
        "test": _spreads(names, [tested(one.metrics) for one in good]),
        "runs": [
            {
                "seed": one.seed,
                "epochs": one.epochs,
                "wall_seconds": one.wall_seconds,
                "cost_usd": one.cost_nano_usd / NANO,
                "failure": run.failure or None,
            }
            for one, run in zip(found, runs, strict=True)
        ],
    }


def measured_on(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the part of the data that measured the models: "test", "validation", or None if all trainings failed."""
    return next((part for part in ("test", "validation") if any(row[part] for row in rows)), None)


def _lines_of(one: Retrained) -> Iterator[str]:
    for point in one.points:
        name = f"{one.spec.trial}@{point.epoch}, seed {point.seed}"
        if one.failure:
            yield f"{name}: failed: {last_line(one.failure)}"
            continue
        shown = {name: value for name, value in without_errors(point.metrics).items() if name not in OUR_METRICS}
        figures = "  ".join(f"{metric} {value:.4f}" for metric, value in shown.items())
        yield f"{name}: {figures}  {duration(point.wall_seconds)}  {usd(point.cost_nano_usd / NANO)}"


def _spreads(names: Sequence[str], told: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    values = {name: [one[name] for one in told if math.isfinite(one.get(name, math.nan))] for name in names}
    return {name: spread(some) for name, some in values.items() if some}
