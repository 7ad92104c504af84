"""`automl confirm`: what points of the archive are worth with other seeds, on data that the search never saw."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from automl.confirmed_before import confirmed_before
from automl.confirmed_points import Point, announcement, by_trial, chosen_points, expected_seconds, slots_for
from automl.confirmed_results import at_epoch, lines_of, measured_on, row_of
from automl.launching.pools import pool_of
from automl.launching.preparing import Prepared, prepare
from automl.signals import draining_signals
from automl.stored.reporting import refresh
from automl.stored.specs import from_store
from reports.wording import plural
from search_spaces.seeds import fresh_seed
from studies import analysis
from studies.control.assembly import checkpoint_folder
from studies.control.dead_pools import settle_dead_pools
from studies.control.orphans import mark_used
from studies.control.retraining import Retrained, Retraining
from studies.gangs.on_ray import RayPool
from studies.gangs.protocol import DrainRequested, PriceSet
from studies.money.ledger import cost_nano_usd
from studies.recommendation import recommended
from studies.records import NANO, StudyRecord, TrialRecord
from studies.storage import heartbeat
from studies.storage import lease as leases
from studies.storage.changes import Change, Confirmed, StudyChanged
from studies.storage.engine import StoreError
from studies.storage.processes import marked
from studies.storage.reader import load_study
from studies.storage.retrying import retry
from studies.storage.store import Store, new_id
from studies.storage.views import catch_up
from trainers.checkpoint_urls import joined, trial_folder
from trainers.protocol import TrialSpec

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """What is to be trained.

    Attributes:
        record: Study as committed.
        prepared: The study, ready to train.
        points: Points to confirm.
        trials: Started trials by number.
        specs: The trainings.
    """

    record: StudyRecord
    prepared: Prepared
    points: Sequence[Point]
    trials: Mapping[int, TrialRecord]
    specs: Sequence[TrialSpec]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Payer:
    """Who pays for trainings: a job of a queue, within what it may cost, or the study's own job."""

    job_id: int | None
    most_nano_usd: Callable[[], int] | None


def expected(store: Store, study: str, names: Sequence[str], *, seeds: int) -> dict[str, Any]:
    """Return what `confirm` would train, and what that will probably cost; trains nothing.

    Args:
        store: Store that holds the study.
        study: Name of the study.
        names: Points, as `confirm` takes them.
        seeds: Trainings of each.

    Returns:
        {"study": ..., "points": ["2@6", ...], "trainings": count, "expected_usd": ..., "message": one line}

    Raises:
        UserError: As `confirm` raises it.
    """
    plan = _planned(store, study, names, seeds=seeds)
    slots, price = slots_for(plan.prepared, plan.specs), plan.prepared.place.usd_per_slot_hour
    seconds = expected_seconds(plan.record, plan.specs, slots)
    return {
        "study": study,
        "points": [str(point) for point in plan.points],
        "trainings": len(plan.specs),
        "expected_usd": cost_nano_usd(slots, seconds, price) / NANO,
        "message": announcement(plan.record, plan.prepared, plan.points, plan.specs, seeds),
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
    """Train points of the archive again as they were trained, each with fresh seeds, and measure the test part.

    A training has the schedule of the search and ends at the epoch of the point; points of one trial share it.

    It is charged to the study as `confirm`, whatever is left of the budget, since it was asked for. A job goes on where
    its earlier runs have ended; without a job everything is trained, at each call.

    Args:
        store: Store that holds the study.
        study: Name of the study.
        names: Points, as `chosen_points` takes them; none takes those that a recommendation names.
        seeds: Trainings of each; the same ones each time it is called.
        keeps_models: Whether to keep what each training ends with, for `automl export --ensemble`.
        say: Called with what it will cost, and with each training that is over.
        slots: Number of slots; None takes that of the spec.
        job_id: Job of a queue that pays for it; None leaves that to the study's own.
        most_nano_usd: Function that returns what it may cost, in nano-dollars, called when all that died before is
            charged; None is no limit.

    Returns:
        {..., "trials": [one mapping for each point], "recommendation": what is to be taken now}, plain values.

    Raises:
        StoreError: There is no such study or trial, or a controller drives it.
        SpecError: The study's spec does not hold on this machine.
        PoolError: The slots cannot be had.
        SpentError: It has cost as much as it may.
    """
    plan = _planned(store, study, names, seeds=seeds, slots=slots)
    record, prepared, points, trials, specs = plan.record, plan.prepared, plan.points, plan.trials, plan.specs
    spec = prepared.spec
    if keeps_models:
        folder = checkpoint_folder(spec, prepared.base_folder, record.uid)
        specs = [_kept(one, folder) for one in specs]
    ids = {number: trial.id for number, trial in trials.items()}
    study_id = store.require(study).id
    done = confirmed_before(store, study_id, job_id, specs, ids)
    over = [one.spec for one in done]
    left = [one for one in specs if one not in over]
    if done:
        say(f"{len(done)} of {plural(len(specs), 'training')} had ended before")
    if left:
        say(announcement(record, prepared, points, left, seeds))
    payer = _Payer(job_id=job_id, most_nano_usd=most_nano_usd)
    trained, cost = _train(store, study_id, prepared, left, ids=ids, say=say, payer=payer)
    done += trained
    catch_up(store, study, ("mlflow",))  # no controller does that; what fails stands in `automl status`
    refresh(store, study, prepared.base_folder)
    rows = [
        row_of(record, point, trials[point.trial], [one for one in done if one.spec.trial == point.trial])
        for point in points
    ]
    after = load_study(store, study)
    found = recommended(after)
    return {
        "study": study,
        "seeds": seeds,
        "epochs": spec.training.epochs,
        "measured_on": measured_on(rows),
        "cost_usd": cost / NANO,
        "study_cost_usd": after.cost_nano_usd / NANO,
        "trials": rows,
        "recommendation": None if found is None else analysis.jsonable(found.plain()),
    }


def _planned(store: Store, study: str, names: Sequence[str], *, seeds: int, slots: int | None = None) -> _Plan:
    row = store.require(study)
    record = load_study(store, study)
    spec = from_store(row.spec, study).model_copy(update={"store": store.url})
    if slots is not None:
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={"slots": slots})})
    prepared = prepare(spec, source=study, base_folder=Path(row.base_folder))
    prepared = replace(prepared, place=prepared.place.at_price(row.usd_per_slot_hour))
    points = chosen_points(record, names, spec.training.epochs)
    trials = {trial.number: trial for trial in record.started if trial.number is not None}
    specs = [
        _spec(prepared, trials[number], epochs, _fresh_seed(spec.search.seed, number, n))
        for number, epochs in by_trial(points)
        for n in range(seeds)
    ]
    return _Plan(record=record, prepared=prepared, points=points, trials=trials, specs=specs)


def _fresh_seed(study_seed: int, trial: int, number: int) -> int:
    return fresh_seed("confirm", study_seed, trial, number)


def _spec(prepared: Prepared, trial: TrialRecord, epochs: tuple[int, ...], seed: int) -> TrialSpec:
    """One training of a trial with the schedule of the search, measured at some epochs; it ends at the last of them."""
    spec = prepared.spec
    assert trial.number is not None  # noqa: S101 - it was started
    return TrialSpec(
        study=spec.study,
        trial=trial.number,
        task=spec.task,
        task_options=dict(spec.task_options),
        params={name: value for name, value in trial.params.items() if name not in trial.asked},
        proposed=trial.asked if spec.search.learn_space else None,
        training=spec.training.model_dump(),
        world_size=trial.world_size,
        seed=seed,
        device=prepared.place.device,
        cpus_per_rank=spec.resources.cpus_per_rank,
        python_path=(str(prepared.base_folder),),
        test_at=epochs,
    )


def _kept(spec: TrialSpec, folder: str) -> TrialSpec:
    """Have the confirmed models written, beside those of the search: a lost training starts anew."""
    return replace(
        spec,
        milestones=spec.test_at,
        checkpoint_folder=joined(folder, trial_folder(spec.trial, spec.seed)),
        checkpoint_every_seconds=math.inf,
    )


def _train(
    store: Store,
    study_id: int,
    prepared: Prepared,
    specs: Sequence[TrialSpec],
    *,
    ids: Mapping[int, int],
    say: Say,
    payer: _Payer,
) -> tuple[list[Retrained], int]:
    """Train under the study's lease, and commit what each training measured.

    Args:
        store: Store that holds the study.
        study_id: Id of the study's row.
        prepared: The study, ready to train.
        specs: The trainings; without any, what a controller that died has left is settled, and that is all.
        ids: Ids of the trials' rows by number.
        say: Called with a line for each training that is over.
        payer: Who pays, and how much at most.

    Returns:
        The results, and the cost in nano-dollars.
    """
    pool = pool_of(prepared)

    def ended(one: Retrained) -> None:
        if not one.failure:
            rows = [_confirmed(one, epoch, ids[one.spec.trial]) for epoch in one.spec.test_at]
            _commit(store, study_id, lease, rows)
        for line in lines_of(one):
            say(line)

    row = store.require(prepared.spec.study)
    with marked(row.uid), _held(store, study_id, pool, payer.job_id) as lease:
        retraining = Retraining(
            pool=pool,
            slots=slots_for(prepared, specs),
            usd_per_slot_hour=prepared.place.usd_per_slot_hour,
            epochs=prepared.spec.training.epochs,
            commit=lambda changes: _commit(store, study_id, lease, changes),
            on_end=ended,
            faults=prepared.spec.faults,
            autoscale=prepared.spec.resources.autoscale,
            most_nano_usd=None if payer.most_nano_usd is None else payer.most_nano_usd(),
        )
        if any(one.checkpoint_folder is not None for one in specs):
            mark_used(checkpoint_folder(prepared.spec, prepared.base_folder, row.uid), store, lease)
        drain = lambda _reason: pool.post(DrainRequested(reason="interrupted"))  # noqa: E731
        try:
            with draining_signals(drain, say, "the trainings that run are given up, their time is charged"):
                return retraining.run(specs) if specs else [], retraining.cost_nano_usd
        finally:
            _note_overshoot(store, study_id, lease, prepared)


@contextmanager
def _held(store: Store, study_id: int, pool: RayPool, job_id: int | None) -> Iterator[leases.Lease]:
    """Hold the study's lease, so that no controller may drive it in the meantime."""
    lease = leases.acquire(store, study_id, job_id=job_id)
    if isinstance(lease, leases.Holder):
        raise StoreError(f"study: found one that {lease} drives; allowed: one that is over, or `automl stop` it first")
    stopped = threading.Event()

    def stop() -> None:
        if not stopped.is_set():
            stopped.set()
            pool.post(DrainRequested(reason="stopped", message="automl stop ended it"))

    def look_for_price() -> None:
        price = store.price_that_was_set(study_id)
        if price is not None:
            pool.post(PriceSet(usd_per_slot_hour=price))

    with heartbeat.kept(store, lease, on_stop=stop, on_requests=look_for_price):
        settle_dead_pools(store, lease)
        yield lease


def _note_overshoot(store: Store, study_id: int, lease: leases.Lease, prepared: Prepared) -> None:
    """Record the overspending of the study's budget so far; `automl status` and the report show it."""
    limit = prepared.spec.budget.usd
    if limit is None:
        return
    spent = load_study(store, prepared.spec.study).cost_nano_usd
    change = StudyChanged(columns={"overshoot_nano_usd": max(0, spent - round(limit * NANO))})
    _commit(store, study_id, lease, [change])


def _commit(store: Store, study_id: int, lease: leases.Lease, changes: Sequence[Change]) -> None:
    """Write changes, also if the database is away for a while; never twice, if only its answer was lost."""
    write = partial(store.commit, study_id, lease.token, changes, commit_id=new_id())
    retry(write, partial(logging.getLogger(__name__).warning, "the store does not answer (%s); measurements wait"))


def _confirmed(one: Retrained, epoch: int, trial_id: int) -> Confirmed:
    found = at_epoch(one, epoch)
    return Confirmed(
        trial_id=trial_id,
        seed=one.spec.seed,
        epoch=epoch,
        epochs=found.epochs,
        metrics=found.metrics,
        wall_seconds=found.seconds,
        cost_nano_usd=found.cost_nano_usd,
        checkpoint=found.checkpoint,
        at=time.time(),
    )
