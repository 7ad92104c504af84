"""What trainings that confirmed models have measured: the rows of `automl confirm --json`, and lines while they end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from automl.confirmed_points import Point
from reports.wording import duration, usd
from search_spaces.outside_text import last_line
from studies import analysis
from studies.confirmations import spread, tested
from studies.control.retraining import Retrained
from studies.records import NANO, StudyRecord, TrialRecord
from trainers.protocol import OUR_METRICS, TEST_PREFIX


def row_of(record: StudyRecord, point: Point, trial: TrialRecord, runs: Sequence[Retrained]) -> dict[str, Any]:
    """Return what the trainings of a point have measured, beside what the search saw."""
    good = [at_epoch(run, point.epoch) for run in runs if not run.failure]
    saw = next((epoch.metrics for epoch in trial.epochs if epoch.epoch == point.epoch), {})
    objectives = [objective.metric for objective in record.objectives]
    measured = saw or (good[0].metrics if good else {})
    own = [name for name in measured if name == "val_loss" or (name not in OUR_METRICS and TEST_PREFIX not in name)]
    names = list(dict.fromkeys([*objectives, *(one.metric for one in record.constraints), *own]))
    return {
        "trial": point.trial,
        "epoch": point.epoch,
        "params": dict(trial.params),
        "world_size": trial.world_size,
        "searched_epochs": len(trial.epochs),
        "search": {name: analysis.jsonable(saw[name]) for name in names if name in saw},
        "validation": _spreads(names, [_metrics(run) for run in good]),
        "test": _spreads(names, [tested(run.metrics) for run in good]),
        "runs": [
            {
                "seed": run.spec.seed,
                "epochs": at_epoch(run, point.epoch).epochs,
                "wall_seconds": at_epoch(run, point.epoch).seconds,
                "cost_usd": at_epoch(run, point.epoch).cost_nano_usd / NANO,
                "failure": run.failure or None,
            }
            for run in runs
        ],
    }


def measured_on(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the part of the data that the trainings were measured on; None if none of them has ended well."""
    return next((part for part in ("test", "validation") if any(row[part] for row in rows)), None)


def lines_of(one: Retrained) -> Iterator[str]:
    """Yield what was measured, a line for each confirmed epoch."""
    for epoch in one.spec.test_at:
        name, found = f"{one.spec.trial}@{epoch}, seed {one.spec.seed}", at_epoch(one, epoch)
        if one.failure:
            yield f"{name}: failed: {last_line(one.failure)}"
            continue
        shown = {name: value for name, value in found.metrics.items() if name not in OUR_METRICS}
        figures = "  ".join(f"{metric} {value:.4f}" for metric, value in shown.items())
        yield f"{name}: {figures}  {duration(found.seconds)}  {usd(found.cost_nano_usd / NANO)}"


def at_epoch(one: Retrained, epoch: int) -> Retrained:
    """Return the result of a training at a confirmed epoch; one that stopped improving before it has its last one."""
    return next((earlier for earlier in one.earlier if earlier.epochs == epoch), one)


def _metrics(run: Retrained) -> dict[str, float]:
    return {**run.metrics, "cost_usd": run.cost_nano_usd / NANO, "wall_seconds": run.seconds}


def _spreads(names: Sequence[str], told: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Mean and deviation of each metric over the trainings that have it."""
    values = {name: [one[name] for one in told if math.isfinite(one.get(name, math.nan))] for name in names}
    return {name: spread(some) for name, some in values.items() if some}
