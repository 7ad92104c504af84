"""Results of confirmations: metrics of models trained again with new seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from studies.records.records import ConfirmationRecord, StudyRecord
from trainers.protocol import OUR_METRICS, STDERR, TEST_PREFIX, TEST_SAMPLES


def confirmation_of(record: StudyRecord, trial: int, epoch: int | None = None) -> dict[str, Any] | None:
    """Return the measurements that confirm a model, by default of the latest confirmed epoch; None if not confirmed.

    Keys: `epoch`; `seeds`, the number of seeds; `measured_on`, "test" if the task has a test part, else "validation";
    `epochs` of the shortest training; and `metrics`, each as in `spread`.
    """
    runs = confirmed_runs(record, trial, epoch)
    return confirmation_by(runs) if runs else None


def confirmation_by(runs: Sequence[ConfirmationRecord]) -> dict[str, Any]:
    """Return `confirmation_of` a model from its trainings, at least one."""
    has_test = all(any(name.startswith(TEST_PREFIX) for name in one.metrics) for one in runs)
    told = [_of_part(without_errors(one.metrics), has_test=has_test) for one in runs]
    names = [name for name in told[0] if all(math.isfinite(one.get(name, math.nan)) for one in told)]
    return {
        "epoch": runs[0].epoch,
        "seeds": len(runs),
        "epochs": min(one.epochs for one in runs),
        "measured_on": "test" if has_test else "validation",
        "metrics": {name: spread([one[name] for one in told]) for name in names},
    }


def confirmed_runs(record: StudyRecord, trial: int, epoch: int | None = None) -> list[ConfirmationRecord]:
    """Return the trainings that confirm a model, by default the trial's latest confirmed epoch."""
    runs = [one for one in record.confirmations if one.trial == trial and epoch in {None, one.epoch}]
    latest = max(runs, key=lambda one: one.confirmed_at, default=None)
    return [one for one in runs if latest is not None and one.epoch == latest.epoch]


def without_errors(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics without standard errors."""
    return {name: value for name, value in metrics.items() if not name.endswith(STDERR)}


def tested(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics of the test part, without their prefix."""
    return {name.removeprefix(TEST_PREFIX): value for name, value in metrics.items() if name.startswith(TEST_PREFIX)}


def test_of(record: StudyRecord, trial: int, epoch: int) -> dict[str, float] | None:
    """Return a saved model's metrics on the test part as in `tested`, measured at the study's end; None if not tested.

    `test_samples` is the number of samples, if known.
    """
    found = next((one.metrics for one in record.tests if (one.trial, one.epoch) == (trial, epoch)), None)
    if found is None:
        return None
    return tested(found) | {name: value for name, value in found.items() if name == TEST_SAMPLES} or None


def answers_of(record: StudyRecord, trial: int, epoch: int) -> Mapping[str, Any]:
    """Return the description of a model's predictions (`trainers.loop.epoch_metrics`), or {}."""
    found = (one.answers for one in record.tests if (one.trial, one.epoch) == (trial, epoch))
    return next(found, None) or {}


def spread(values: list[float]) -> dict[str, Any]:
    """Return `mean`, `deviation` (None for a single value) and `values`."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": values}


def _of_part(metrics: Mapping[str, float], *, has_test: bool) -> dict[str, float]:
    if has_test:
        return tested(metrics)
    return {name: value for name, value in metrics.items() if name == "val_loss" or name not in OUR_METRICS}
