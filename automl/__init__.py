"""Hyperparameter search for PyTorch that accounts for every cent.

Examples:
    >>> import automl
    >>> study = automl.launch("digits.yaml")  # or automl.load("digits")
    >>> study.front, study.archive, study.trials
    >>> model = study.load_model(trial=12, epoch=20)
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from automl import callbacks
    from automl.api import Study, launch, load, search
    from automl.inside_trial import TrialOver, checkpoint, heartbeat, params, report, resume
    from search_spaces.parameters import Categorical, Float, Int, Prior
    from search_spaces.space import Space
    from studies.spec.sections import BaselineSpec as Baseline
    from studies.spec.sections import BudgetSpec as Budget
    from studies.spec.sections import CheckpointsSpec as Checkpoints
    from studies.spec.sections import ConstraintSpec as Constraint
    from studies.spec.sections import FaultsSpec as Faults
    from studies.spec.sections import ObjectiveSpec as Objective
    from studies.spec.sections import PrunerSpec as Pruner
    from studies.spec.sections import ResourcesSpec as Resources
    from studies.spec.sections import SearchSpec as Search
    from studies.spec.sections import TrainingSpec as Training
    from trainers.functions.trial import Trial

__all__ = [
    "Baseline", "Budget", "Categorical", "Checkpoints", "Constraint", "Faults", "Float", "Int", "Objective", "Prior",
    "Pruner", "Resources", "Search", "Space", "Study", "Training", "Trial", "TrialOver", "callbacks", "checkpoint",
    "heartbeat", "launch", "load", "params", "report", "resume", "search",
]  # fmt: skip
__version__ = "0.1.0"

_API = ("Study", "launch", "load", "search")
_INSIDE = ("TrialOver", "checkpoint", "heartbeat", "params", "report", "resume")
"""Functions for scripts that run as trials; `automl.inside_trial` imports only the standard library."""
_PARAMETERS = ("Categorical", "Float", "Int", "Prior")
_MODULES = {
    **dict.fromkeys(_API, "automl.api"),
    **dict.fromkeys(_INSIDE, "automl.inside_trial"),
    **dict.fromkeys(_PARAMETERS, "search_spaces.parameters"),
    "Space": "search_spaces.space",
    "Trial": "trainers.functions.trial",
}
"""Module that defines each name. Other names are sections of a spec, such as `BudgetSpec`."""


def __getattr__(name: str) -> Any:
    # `automl --help` imports this package too, and must not wait for modules that only a study needs.
    if name not in __all__:
        raise AttributeError(f"module 'automl' has no attribute {name!r}")
    if name == "callbacks":
        return importlib.import_module("automl.callbacks")
    with warnings.catch_warnings():
        # In a notebook Optuna loads a progress bar that asks for ipywidgets, which this project does not use.
        warnings.filterwarnings("ignore", message="IProgress not found")
        module = importlib.import_module(_MODULES.get(name, "studies.spec.sections"))
    return getattr(module, name if name in _MODULES else f"{name}Spec")


def __dir__() -> list[str]:
    return sorted(__all__)
