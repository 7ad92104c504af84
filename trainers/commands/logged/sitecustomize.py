"""Reports the values that a trial's program logs to Weights & Biases or TensorBoard, as calls of `automl.report`.

The variable AUTOML_LOGGED is JSON: `logger` is "wandb" or "tensorboard", `names` maps logged names to metrics, and
`epoch_from` is null or [name, first, divisor, last] for the epoch (n + first) / divisor + last. An epoch is complete
once each name was logged; n is the last number logged under `name`, or the step if there is none. Uses the standard
library only, as it may run in another environment.
"""

import atexit
import functools
import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_MOST_SEEN = 20
_HERE = Path(__file__).resolve()
_INSIDE_TRIAL = _HERE.parents[3] / "automl" / "inside_trial.py"
_METHODS = {"wandb": ("Run", "log"), "tensorboard": ("SummaryWriter", "add_scalar")}
"""Class and method that log values, by logger."""
_MODULES = {
    "wandb": ("wandb.sdk.wandb_run",),
    "tensorboard": ("torch.utils.tensorboard.writer", "tensorboardX.writer"),
}
"""Modules of the class, by logger."""


class _Epochs:
    """Collects logged values, and reports each complete epoch."""

    def __init__(self, logger: str, names: dict[str, str], epoch_from: list[Any] | None) -> None:
        self.logger, self._names, self._epoch_from = logger, names, epoch_from
        self._values: dict[str, Any] = {}
        self._count, self._number = 0, None
        self._seen: dict[str, None] = {}
        self._is_any_complete = False
        spec: Any = importlib.util.spec_from_file_location("_automl_inside_trial", _INSIDE_TRIAL)
        self._trial = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._trial)

    def add(self, logged: Any, step: Any = None) -> None:
        if len(self._seen) < _MOST_SEEN:
            self._seen |= dict.fromkeys(map(str, logged))
        if self._epoch_from is not None:
            self._number = logged.get(self._epoch_from[0], self._number)
        self._values |= {self._names[name]: value for name, value in logged.items() if name in self._names}
        if len(self._values) < len(self._names):
            return
        values, self._values, self._is_any_complete = self._values, {}, True
        epoch = self._epoch(step)
        if epoch is not None:
            self._trial.report(epoch, **values)

    def explain(self) -> None:
        """Print the names that the program has logged, if no epoch was complete and no exception ended it."""
        missing = ", ".join(name for name, metric in self._names.items() if metric not in self._values)
        if self._seen and missing and not self._is_any_complete and getattr(sys, "last_type", None) is None:
            seen = ", ".join(f"{name:.50}" for name in list(self._seen)[:_MOST_SEEN])
            print(f"not logged to {self.logger}: {missing}; logged: {seen}", file=sys.stderr)

    def _epoch(self, step: Any) -> int | None:
        if self._epoch_from is None:
            self._count += 1
            return self._count
        _, first, divisor, last = self._epoch_from
        number = step if self._number is None else self._number
        epoch = 0.0 if number is None else (float(number) + first) / divisor + last
        return int(epoch) if epoch >= 1 and epoch.is_integer() else None


def _watch(module: Any, epochs: _Epochs) -> None:
    """Let the module's logging method report its values, after it has logged them."""
    owner, method = _METHODS[epochs.logger]
    log = getattr(getattr(module, owner), method)

    @functools.wraps(log)
    def wandb_log(self: Any, data: Any, step: Any = None, *more: Any, **named: Any) -> Any:
        done = log(self, data, step, *more, **named)
        epochs.add(data, step)
        return done

    @functools.wraps(log)
    def add_scalar(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *more: Any, **named: Any) -> Any:
        done = log(self, tag, scalar_value, global_step, *more, **named)
        epochs.add({tag: scalar_value}, global_step)
        return done

    setattr(getattr(module, owner), method, wandb_log if method == "log" else add_scalar)
    atexit.unregister(epochs.explain)  # of another module of the same logger
    atexit.register(epochs.explain)


class _Finder:
    """Finds the modules of loggers as Python does, and watches them once they are loaded."""

    def __init__(self, epochs: _Epochs) -> None:
        self._epochs = epochs

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        spec: Any = PathFinder.find_spec(name, path) if name in _MODULES[self._epochs.logger] else None
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _watch(module, self._epochs)

            spec.loader.exec_module = exec_module
        return spec


def _import_hidden() -> None:
    """Import the `sitecustomize` that this one hides, if there is one."""
    hidden: Any = PathFinder.find_spec(
        "sitecustomize", [one for one in sys.path if Path(one).resolve() != _HERE.parent]
    )
    if hidden is not None:
        hidden.loader.exec_module(importlib.util.module_from_spec(hidden))


if __name__ == "sitecustomize":
    _import_hidden()
    if "AUTOML_LOGGED" in os.environ:
        sys.meta_path.insert(0, _Finder(_Epochs(**json.loads(os.environ["AUTOML_LOGGED"]))))
