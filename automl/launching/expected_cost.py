"""Estimates a study's cost, and the number of full trainings in its budget, before the launch."""

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from automl.launching.prepared_study import Prepared
from reports.phrases import duration, mapping, plural, usd
from studies.records.records import OF_SAVED_MODELS, StudyRecord
from studies.results.pareto import last_epoch
from studies.spec.study_spec import spec_to_mapping
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, is_current, parse_url
from studies.storage.study_store import Store
from trainers.commands.command import COMMAND

HOUR = 3600.0


def expected_cost(prepared: Prepared, earlier: "EarlierCost | None") -> str:
    """Return a line with the largest possible and the expected cost, which is unknown if `earlier` is None."""
    budget, place = prepared.spec.budget, prepared.place
    most = most_slot_seconds(prepared)
    ceiling = f"at most {_amount(prepared, most)}" if math.isfinite(most) else "only the number of trials is limited"
    if earlier is None:
        return f"unknown until the first epoch, because no study of this store has trained this task; {ceiling}"
    if earlier.other_slots:
        source = f"trials of {earlier.study} ran on {earlier.other_slots}"
        return f"unknown until the first epoch, because {source}; {ceiling}"
    scale = prepared.spec.training.epochs / earlier.epochs
    by_trials = math.inf if budget.trials is None else budget.trials * earlier.slot_seconds_per_trial * scale
    likely = min(by_trials, most)
    if not math.isfinite(likely):
        return f"unknown: {ceiling}"
    ends = "when all trials are started" if by_trials <= most else "when the budget is used up"
    time = duration(likely / place.slots)
    return f"about {_amount(prepared, likely)} in {time}, {ends} ({ceiling}); {_trainings(prepared, earlier, most)}"


def _trainings(prepared: Prepared, earlier: "EarlierCost", most: float) -> str:
    """Return the number of full trainings that the budget allows, and the estimate's source, in words."""
    full = earlier.slot_seconds_per_epoch * prepared.spec.training.epochs
    source = f"by {plural(earlier.trials, 'trial')} of {earlier.study}"
    each = f"{_amount(prepared, full)} each, {source}"
    if not math.isfinite(most) or full <= 0:
        return f"a full training costs about {_amount(prepared, full)}, {source}"
    count = most / full
    shown = plural(math.floor(count), "full training") if count >= 1 else f"{count:.2g} of a full training"
    return f"the budget pays about {shown} of {prepared.spec.training.epochs} epochs, {each}"


def most_slot_seconds(prepared: Prepared, set_price: float | None = None) -> float:
    """Return the slot-seconds that the budget's dollars and hours allow. `set_price` replaces the spec's price."""
    budget, price = prepared.spec.budget, prepared.price.usd_per_slot_hour if set_price is None else set_price
    by_usd = math.inf if budget.usd is None or price <= 0 else budget.usd / price * HOUR
    by_hours = math.inf if budget.hours is None else budget.hours * HOUR * prepared.place.slots
    return min(by_usd, by_hours)


def _amount(prepared: Prepared, slot_seconds: float) -> str:
    price = prepared.price.usd_per_slot_hour
    return usd(slot_seconds / HOUR * price) if price > 0 else f"{duration(slot_seconds)} of one slot"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierCost:
    """Device time of an earlier study's trials.

    Attributes:
        slot_seconds_per_epoch: Median over trials of the mean slot-seconds per epoch.
        slot_seconds_per_trial: Mean over trials, with the study's overhead.
        other_slots: Difference from the plan's slots that makes the seconds incomparable, such as "slots of 8 CPUs, not
            1"; empty if the slots are alike.
    """

    study: str
    trials: int
    slot_seconds_per_epoch: float
    slot_seconds_per_trial: float
    epochs: int
    other_slots: str = ""


def earlier_cost(prepared: Prepared, *, project: str | None = None) -> EarlierCost | None:
    """Return the cost of trials of the same task and options, from the newest study that has such trials.

    Studies on slots like the plan's have priority over newer studies. An unreadable store counts as empty.
    """
    try:
        url = parse_url(prepared.spec.store)
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
            return None
        if not is_current(prepared.spec.store):
            return None
        with closing(Store(prepared.spec.store)) as store:
            named = [name for name in store.study_names() if project is None or name.startswith(f"{project}.")]
            on_others = None
            for row in filter(lambda one: _is_alike(one, prepared), map(store.require, reversed(named))):
                others = _other_slots(store, row, prepared)
                if others and on_others is not None:
                    continue
                cost = cost_of(load_study(store, row.name), others)
                if cost is not None and not others:
                    return cost
                on_others = on_others or cost
            return on_others
    except (StoreError, sa.exc.SQLAlchemyError, ModuleNotFoundError):
        return None


def _is_alike(row: sa.Row[Any], prepared: Prepared) -> bool:
    spec, task = spec_to_mapping(prepared.spec), prepared.spec.task
    is_own = ":" in task or task == COMMAND
    same_place = not is_own or row.base_folder == str(prepared.base_folder)
    return row.spec.get("task") == task and row.spec.get("task_options") == spec.get("task_options") and same_place


def _other_slots(store: Store, row: sa.Row[Any], prepared: Prepared) -> str:
    """Describe how an earlier study's slots differ from the plan's; empty if they are alike."""
    there, here, price = mapping(row.spec.get("resources")), prepared.spec.resources, prepared.price.usd_per_slot_hour
    device, cpus = there.get("device", "auto"), there.get("cpus_per_rank", here.cpus_per_rank)
    if device not in {"auto", prepared.place.device}:
        return f"slots of the device {device}, not {prepared.place.device}"
    if cpus != here.cpus_per_rank:
        return f"slots of {plural(int(str(cpus)), 'CPU')}, not {here.cpus_per_rank}"
    prices = _prices_paid(store, row.id)
    if not prices or any(math.isclose(paid, price) for paid in prices):
        return ""
    return f"slots of {usd(prices[-1])} an hour, not {usd(price)}"


def _prices_paid(store: Store, study_id: int) -> list[float]:
    """Return the charged prices of a slot in dollars per hour, the latest last."""
    c = t.charges.c
    query = sa.select(c.usd_per_slot_hour).where(c.study_id == study_id).group_by(c.usd_per_slot_hour)
    with store.snapshot() as connection:
        return list(connection.scalars(query.order_by(sa.func.max(c.id))))


def cost_of(record: StudyRecord, other_slots: str = "") -> EarlierCost | None:
    """Return the cost of a study's trials, or None if no epoch was measured."""
    measured = [trial for trial in record.started if trial.epochs]
    epochs = last_epoch(record.spec)
    if not measured or epochs is None:
        return None
    slot_seconds = [one.world_size * sum(e.wall_seconds for e in one.epochs) / len(one.epochs) for one in measured]
    charged = sum(charge.slots * charge.seconds for charge in record.charges if charge.kind not in OF_SAVED_MODELS)
    return EarlierCost(
        study=record.name,
        trials=len(measured),
        slot_seconds_per_epoch=median(slot_seconds),
        slot_seconds_per_trial=charged / len(record.started),
        epochs=epochs,
        other_slots=other_slots,
    )


def warm_up_seconds(record: StudyRecord) -> float:
    """Return the seconds until the first slots were ready, the first idle charge; 0 if unknown."""
    return next((charge.seconds for charge in record.charges if charge.kind == "idle"), 0.0)
