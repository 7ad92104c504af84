"""Standard errors of measured metrics: how far a value may be from the one on endless data of the same kind.

The trainer reports the standard error of each mean over samples as a metric of its own, `val_error_stderr` for
`val_error`; a training function may report one, too. Fresh seeds (`automl confirm`) give a standard error as well.
"""

import math

from studies.records.records import StudyRecord
from studies.results.confirmations import confirmation_of
from trainers.protocol import STDERR


def standard_error(study: StudyRecord, metric: str, trial: int, epoch: int) -> float | None:
    """Return the standard error of a metric of a trial after an epoch (from 1); None if it is unknown or not finite.

    After confirmation with at least two seeds it is the standard error of their mean.
    """
    confirmed = confirmation_of(study, trial, epoch)
    spread = None if confirmed is None else confirmed["metrics"].get(metric)
    if spread is not None and spread["deviation"] is not None:
        return float(spread["deviation"] / math.sqrt(len(spread["values"])))
    value = study.started[trial].epochs[epoch - 1].metrics.get(f"{metric}{STDERR}", math.nan)
    return value if math.isfinite(value) else None
