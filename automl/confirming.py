"""`automl confirm`: what chosen configurations are worth with other seeds, on data that the search never saw."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automl.exporting.points import NAMES, named_point
from automl.launching.pools import pool_of
from automl.launching.preparing import Prepared, prepare
from automl.signals import draining_signals
from automl.stored.reporting import refresh
from automl.stored.specs import from_store
from reports.wording import duration, usd
from search_spaces.outside_text import last_line
from search_spaces.seeds import fresh_seed
from studies import analysis
from studies.control.assembly import checkpoint_folder, fault_limits
from studies.control.dead_pools import settle_dead_pools
from studies.control.retraining import Retrained, Retraining
from studies.gangs.on_ray import RayPool
from studies.gangs.protocol import DrainRequested, PriceSet
from studies.money.ledger import cost_nano_usd
from studies.records import NANO, StudyRecord, TrialRecord
from studies.storage import lease as leases
from studies.storage.changes import Change, Confirmed, StudyChanged
from studies.storage.engine import StoreError
from studies.storage.processes import marked
from studies.storage.reader import load_study
from studies.storage.retrying import retry_patiently
from studies.storage.store import Store, new_id
from trainers.checkpoint_urls import joined
from trainers.protocol import OUR_METRICS, TEST_PREFIX, TrialSpec

if TYPE_CHECKING:
    from rich.table import Table

Say = Callable[[str], None]


def confirm(
    store: Store, study: str, names: Sequence[str], *, seeds: int, keeps_models: bool, say: Say
) -> dict[str, Any]:
    """Train configurations of a study again for their full length, each with fresh seeds, and measure the test part.

    It is charged to the study as `confirm`, whatever is left of the budget, since it was asked for.

    Args:
        store: Store that holds the study.
        study: Name of the study.
        names: Numbers of trials, or names of points of the archive, whose trials are taken; none takes the front.
        seeds: Trainings of each; the same ones each time it is called.
        keeps_models: Whether to keep what each training ends with, for `automl export --ensemble`.
        say: Called with what it will cost, and with each training that is over.

    Returns:
        {..., "trials": [one mapping for each]}, plain values.

    Raises:
        StoreError: There is no such study or trial, or a controller drives it.
        SpecError: The study's spec does not hold on this machine.
        PoolError: The slots cannot be had.
    """
    row = store.require(study)
    record = load_study(store, study)
    trials = _chosen(record, [_number(record, name) for name in names])
    spec = from_store(row.spec, study).model_copy(update={"store": store.url})
    prepared = prepare(spec, source=study, base_folder=Path(row.base_folder))
    prepared = replace(prepared, place=prepared.place.at_price(row.usd_per_slot_hour))
    specs = [_spec(prepared, trial, _fresh_seed(spec.search.seed, trial, n)) for trial in trials for n in range(seeds)]
    if keeps_models:
        folder = checkpoint_folder(spec, prepared.base_folder)
        specs = [_kept(one, spec.training.epochs, folder) for one in specs]
    say(_announcement(record, prepared, trials, seeds))
    ids = {trial.number: trial.id for trial in trials}
    done, cost = _train(store, row.id, prepared, specs, ids=ids, say=say)
    refresh(store, study, prepared.base_folder)
    by_trial = {trial.number: [one for one in done if one.spec.trial == trial.number] for trial in trials}
    rows = [_row(record, trial, by_trial[trial.number]) for trial in trials]
    return {
        "study": study,
        "seeds": seeds,
        "epochs": spec.training.epochs,
        "measured_on": "test" if any(row["test"] for row in rows) else "validation",
        "cost_usd": cost / NANO,
        "study_cost_usd": load_study(store, study).cost_nano_usd / NANO,
        "trials": rows,
    }


def _number(record: StudyRecord, name: str) -> int:
    """Return the trial that is meant."""
    trial, epoch = named_point(record, name)
    if epoch is not None and name not in NAMES:
        raise StoreError(
            f"trial: found {name!r}, allowed: a trial alone, such as {trial}, {', '.join(NAMES)}, since confirm trains "
            "for the full number of epochs"
        )
    return trial


def _chosen(record: StudyRecord, numbers: Sequence[int]) -> list[TrialRecord]:
    started = {trial.number: trial for trial in record.started}
    for number in numbers:
        if number not in started:
            raise StoreError(f"trial: found {number}, allowed: 0 to {len(started) - 1}")
    wanted = list(dict.fromkeys(numbers)) or [point.trial for point in analysis.front(record)]
    if not wanted:
        why = analysis.nothing_feasible(record)
        empty = f"the front of {record.name} is empty{f' since {why}' if why else ''}"
        raise StoreError(f"trial: found none, and {empty}; allowed: name trials")
    return [started[number] for number in wanted]


def _fresh_seed(study_seed: int, trial: TrialRecord, number: int) -> int:
    assert trial.number is not None  # noqa: S101 - it was started
    return fresh_seed("confirm", study_seed, trial.number, number)


def _spec(prepared: Prepared, trial: TrialRecord, seed: int) -> TrialSpec:
    spec = prepared.spec
    assert trial.number is not None  # noqa: S101 - it was started
    return TrialSpec(
        study=spec.study,
        trial=trial.number,
        task=spec.task,
        task_options=dict(spec.task_options),
        params=trial.params,
        training=spec.training.model_dump(),
        world_size=trial.world_size,
        seed=seed,
        device=prepared.place.device,
        cpus_per_rank=spec.resources.cpus_per_rank,
        python_path=(str(prepared.base_folder),),
        test_at_end=True,
    )


def _kept(spec: TrialSpec, epochs: int, folder: str) -> TrialSpec:
    """Have the last model written, beside those of the search and nothing before it: a lost training starts anew."""
    return replace(
        spec,
        milestones=(epochs,),
        checkpoint_folder=joined(folder, f"trial-{spec.trial:05d}-seed-{spec.seed}"),
        checkpoint_every_seconds=math.inf,
    )


def _announcement(record: StudyRecord, prepared: Prepared, trials: Sequence[TrialRecord], seeds: int) -> str:
    """What will be trained, and what that will cost as far as the search knows."""
    epochs, price = prepared.spec.training.epochs, prepared.place.usd_per_slot_hour
    cost = 0.0
    for trial in trials:
        seconds = [epoch.wall_seconds for epoch in trial.epochs]
        each = statistics.fmean(seconds) if seconds else 0.0
        cost += seeds * cost_nano_usd(trial.world_size, epochs * each, price) / NANO
    line = record.budget["usd"]
    left = "" if line.limit is None else f"; {usd(max(line.limit - line.spent, 0.0))} of the budget is left"
    names = ", ".join(str(trial.number) for trial in trials)
    return (
        f"confirm trains {'trial' if len(trials) == 1 else 'trials'} {names} for {epochs} epochs with {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'} each: about {usd(cost)} and the starts, charged to {record.name}{left}"
    )


def _train(
    store: Store,
    study_id: int,
    prepared: Prepared,
    specs: Sequence[TrialSpec],
    *,
    ids: Mapping[int | None, int],
    say: Say,
) -> tuple[list[Retrained], int]:
    """Train under the study's lease, and commit what each training measured.

    Args:
        store: Store that holds the study.
        study_id: Id of the study's row.
        prepared: The study, ready to train.
        specs: The trainings.
        ids: Ids of the trials' rows by number.
        say: Called with a line for each training that is over.

    Returns:
        The results, and the cost in nano-dollars.
    """
    pool = pool_of(prepared)

    def ended(one: Retrained) -> None:
        if not one.failure:
            _commit(store, study_id, lease, [_confirmed(one, ids[one.spec.trial])])
        say(_line(one))

    with marked(store.require(prepared.spec.study).uid), _held(store, study_id, pool) as lease:
        retraining = Retraining(
            pool=pool,
            slots=min(prepared.place.slots, sum(spec.world_size for spec in specs)),
            usd_per_slot_hour=prepared.place.usd_per_slot_hour,
            epochs=prepared.spec.training.epochs,
            commit=lambda changes: _commit(store, study_id, lease, changes),
            on_end=ended,
            faults=fault_limits(prepared.spec.faults),
            autoscale=prepared.spec.resources.autoscale,
        )
        drain = lambda _reason: pool.post(DrainRequested(reason="interrupted"))  # noqa: E731
        try:
            with draining_signals(drain, say, "the trainings that run are given up, their time is charged"):
                return retraining.run(specs), retraining.cost_nano_usd
        finally:
            _note_overshoot(store, study_id, lease, prepared)


@contextmanager
def _held(store: Store, study_id: int, pool: RayPool) -> Iterator[leases.Lease]:
    """Hold the study's lease, so that no controller may drive it in the meantime."""
    lease = leases.acquire(store, study_id)
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

    with leases.kept(store, lease, on_stop=stop, on_requests=look_for_price):
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
    """Write changes, also if the database is away for some seconds; never twice, if only its answer was lost."""
    commit_id = new_id()
    retry_patiently(lambda: store.commit(study_id, lease.id, changes, commit_id=commit_id))


def _confirmed(one: Retrained, trial_id: int) -> Confirmed:
    return Confirmed(
        trial_id=trial_id,
        seed=one.spec.seed,
        epochs=one.epochs,
        metrics=one.metrics,
        wall_seconds=one.seconds,
        cost_nano_usd=one.cost_nano_usd,
        checkpoint=one.checkpoint,
        at=time.time(),
    )


def _line(one: Retrained) -> str:
    if one.failure:
        return f"trial {one.spec.trial}, seed {one.spec.seed}: failed: {last_line(one.failure)}"
    shown = {name: value for name, value in one.metrics.items() if name not in OUR_METRICS}
    figures = "  ".join(f"{name} {value:.4f}" for name, value in shown.items())
    cost = usd(one.cost_nano_usd / NANO)
    return f"trial {one.spec.trial}, seed {one.spec.seed}: {figures}  {duration(one.seconds)}  {cost}"


def _row(record: StudyRecord, trial: TrialRecord, runs: Sequence[Retrained]) -> dict[str, Any]:
    good = [run for run in runs if not run.failure]
    saw = trial.epochs[-1].metrics if trial.epochs else {}
    objectives = [objective.metric for objective in record.objectives]
    own = [name for name in saw if name == "val_loss" or name not in OUR_METRICS]
    names = list(dict.fromkeys([*objectives, *(one.metric for one in record.constraints), *own]))
    told = [_metrics(run) for run in good]
    return {
        "trial": trial.number,
        "params": dict(trial.params),
        "world_size": trial.world_size,
        "searched_epochs": len(trial.epochs),
        "search": {name: analysis.jsonable(saw[name]) for name in names if name in saw},
        "validation": _spread(names, told),
        "test": _spread(names, [_tested(run) for run in good]),
        "runs": [
            {
                "seed": run.spec.seed,
                "epochs": run.epochs,
                "wall_seconds": run.seconds,
                "cost_usd": run.cost_nano_usd / NANO,
                "failure": run.failure or None,
            }
            for run in runs
        ],
    }


def _metrics(run: Retrained) -> dict[str, float]:
    return {**run.metrics, "cost_usd": run.cost_nano_usd / NANO, "wall_seconds": run.seconds}


def _tested(run: Retrained) -> dict[str, float]:
    return {
        name.removeprefix(TEST_PREFIX): value for name, value in run.metrics.items() if name.startswith(TEST_PREFIX)
    }


def _spread(names: Sequence[str], told: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Mean and deviation of each metric over the trainings that have it; of one there is no deviation."""
    spread = {}
    for name in names:
        values = [metrics[name] for metrics in told if math.isfinite(metrics.get(name, math.nan))]
        if values:
            deviation = statistics.stdev(values) if len(values) > 1 else None
            spread[name] = {"mean": statistics.fmean(values), "deviation": deviation, "values": values}
    return spread


def table(confirmed: dict[str, Any]) -> Table:
    """The figures for people."""
    from rich import box
    from rich.table import Table

    title = f"{confirmed['study']}: {confirmed['epochs']} epochs with {confirmed['seeds']} fresh seeds"
    made = Table(box=box.SIMPLE, title=title, title_justify="left")
    for name in ("trial", "metric", "the search saw", "validation", "test"):
        made.add_column(name, no_wrap=True, justify="right")
    for row in confirmed["trials"]:
        for number, name in enumerate(dict.fromkeys([*row["search"], *row["validation"]])):
            saw = row["search"].get(name)
            made.add_row(
                str(row["trial"]) if number == 0 else "",
                name,
                "" if saw is None else f"{saw:.5g}",
                _cell(row["validation"].get(name)),
                _cell(row["test"].get(name)),
            )
    return made


def _cell(spread: dict[str, Any] | None) -> str:
    if spread is None:
        return ""
    deviation = "" if spread["deviation"] is None else f" ± {spread['deviation']:.2g}"
    return f"{spread['mean']:.5g}{deviation}"
