"""Hyperparameter search for PyTorch that accounts for every cent.

import automl

study = automl.launch("digits.yaml")        # or automl.load("digits")
study.front, study.archive, study.trials
model = study.load_model(trial=12, epoch=20)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from automl.api import Study, launch, load, search
    from automl.inside import TrialOver, checkpoint, heartbeat, params, report, resume
    from trainers.trial import Trial

__all__ = [
    "Study",
    "Trial",
    "TrialOver",
    "checkpoint",
    "heartbeat",
    "launch",
    "load",
    "params",
    "report",
    "resume",
    "search",
]
__version__ = "0.1.0"
_INSIDE = frozenset({"TrialOver", "checkpoint", "heartbeat", "params", "report", "resume"})
"""What a script calls that is run as a trial: it must load nothing else of ours, see `automl.inside`."""


def __getattr__(name: str) -> Any:
    # `automl --help` imports this package too, and must not wait for what only a study needs.
    if name == "Trial":
        from trainers.trial import Trial

        return Trial
    if name in _INSIDE:
        from automl import inside

        return getattr(inside, name)
    if name in __all__:
        from automl import api

        return getattr(api, name)
    raise AttributeError(f"module 'automl' has no attribute {name!r}")
