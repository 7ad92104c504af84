"""Counts the modules of ours that a `launch` calls into, from the command line to its end, for a tiny simulated study.

Functions in the main thread count; what an import runs does not, nor do ranks, views and other threads.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from automl.cli import cli
from studies.gangs import on_ray
from studies.gangs.simulated import Curve, SimulatedPool

PACKAGES = ("automl", "reports", "search_spaces", "studies", "trainers")
SPEC = """
study: tiny
task: digits
objectives: [{metric: val_error}, {metric: cost_usd}]
space: {learning_rate: {type: float, low: 0.01, high: 0.5, log: true}}
training: {epochs: 2}
search: {sampler: random}
baselines: []
budget: {trials: 2}
resources: {slots: 1, device: cpu}
"""


def modules_of(arguments: list[str]) -> list[str]:
    """Run a command; returns the modules in the order of the first call."""
    entered: dict[str, None] = {}

    importing = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        name, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if function == "exec_module":
            importing += (event == "call") - (event == "return")
        elif event == "call" and not importing and name.startswith(PACKAGES) and not function.startswith("<"):
            entered.setdefault(name)

    sys.setprofile(look)
    with suppress(SystemExit):
        cli.main(arguments, standalone_mode=False)
    sys.setprofile(None)
    return list(entered)


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    Path("spec.yaml").write_text(SPEC)
    curve = Curve(metrics=({"val_error": 0.5}, {"val_error": 0.4}), epoch_seconds=(1.0, 1.0))
    on_ray.RayPool = lambda **_: SimulatedPool(lambda _params, _size: curve)  # type: ignore[misc,assignment]
    modules = modules_of(["launch", "spec.yaml", "--quiet"])
    print(*modules, dict(Counter(name.rpartition(".")[0] for name in modules)), f"{len(modules)} modules", sep="\n")
