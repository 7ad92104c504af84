"""What `automl confirm` found out about a trial: its metrics with fresh seeds, on data that the search never saw."""

from __future__ import annotations

import math
import statistics
from typing import Any

from studies.records import StudyRecord
from trainers.protocol import OUR_METRICS, TEST_PREFIX


def confirmation_of(record: StudyRecord, trial: int) -> dict[str, Any] | None:
    """Return what was measured with fresh seeds, None if the trial was not confirmed.

    Returns:
        `seeds`, their number; `measured_on`, "test" where the task has such a part, else "validation"; `epochs`; and
        `metrics`, for each the mean, the standard deviation (None of one value) and the values.
    """
    runs = [one for one in record.confirmations if one.trial == trial]
    if not runs:
        return None
    has_test = all(any(name.startswith(TEST_PREFIX) for name in one.metrics) for one in runs)
    told = [_of_part(one.metrics, has_test=has_test) for one in runs]
    names = [name for name in told[0] if all(math.isfinite(one.get(name, math.nan)) for one in told)]
    return {
        "seeds": len(runs),
        "epochs": min(one.epochs for one in runs),
        "measured_on": "test" if has_test else "validation",
        "metrics": {name: _spread([one[name] for one in told]) for name in names},
    }


def _of_part(metrics: Any, *, has_test: bool) -> dict[str, float]:
    if has_test:
        return {
            name.removeprefix(TEST_PREFIX): value for name, value in metrics.items() if name.startswith(TEST_PREFIX)
        }
    return {name: value for name, value in metrics.items() if name == "val_loss" or name not in OUR_METRICS}


def _spread(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": values}
