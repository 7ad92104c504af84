"""The training of turnaround.py as a command: what rivals/torchrun.py runs under torchrun, with reports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rivals.workload import trial_spec

import automl
from trainers.local.local_training import train_locally
from trainers.protocol import Measurement


def report(measurement: Measurement) -> None:
    """Report an epoch, and wait for the decision at the rung."""
    metrics: dict[str, Any] = dict(measurement.metrics)
    automl.report(epoch=measurement.epoch, **metrics)


if __name__ == "__main__":
    train_locally(trial_spec(0, Path(os.environ["AUTOML_CHECKPOINT_FOLDER"])), on_measurement=report)
