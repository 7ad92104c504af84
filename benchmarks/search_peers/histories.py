"""What users of other tools bring along: 60 full trainings of Optuna's TPE with the error alone, imported from a tool.

`shuffled` and `inverted` are histories that are wrong: the first gives each run the curve and the seconds of another
one, the second turns the order of errors and of seconds around.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the tests' histories are no part of the package

from automl.histories.importing import import_history
from automl.launching.earlier_studies import trials_of_record
from search_spaces.drawing import derived_seed
from studies.records.records import Objective
from studies.search.model.transfer import EarlierStudy, thinned
from studies.simulation.recorded_curves import CurveTable
from studies.simulation.simulated_study import simulate
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from tests.support.foreign_histories import WRITERS, ForeignRun

FULL_TRAININGS = 60.0
TOOLS = {"shuffled": "ray", "inverted": "optuna"} | {tool: tool for tool in WRITERS}
"""The tool that writes each kind of history."""


def imported(kind: str, table: CurveTable, objectives: Sequence[Objective], slots: int, seed: int) -> EarlierStudy:
    """The history, as a study learns from it after `automl import`."""
    runs = _made(kind, _runs(table, objectives[0], slots, seed), seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = WRITERS[TOOLS[kind]](folder, runs, objectives[0].metric, objectives[0].direction)
        url = f"sqlite:///{folder / 'store.db'}"
        spec = {
            "study": "new", "task": {"command": ["true", *[[f"{{{name}}}"] for name in table.space.names()]]},
            "objectives": [asdict(one) for one in objectives], "space": table.space.to_dict(), "store": url,
            "training": {"epochs": table.epochs}, "checkpoints": {"folder": name}, "mlflow": "off",
        }  # fmt: skip
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        import_history("old", source[1::2], folder / "spec.yaml", price=1.0)
        store = Store(url)
        trials = trials_of_record(load_study(store, "old"), objectives)
        store.close()
    return EarlierStudy(name="old", trials=thinned(trials, objectives))


def _runs(table: CurveTable, objective: Objective, slots: int, seed: int) -> list[ForeignRun]:
    study = simulate(
        table, objectives=[objective], slots=slots, budget_full_trials=FULL_TRAININGS, seed=seed, sampler="tpe",
        pruner="none", finish=0.0,
    )  # fmt: skip
    return [
        ForeignRun(
            params=trial.params,
            curve=[epoch.metrics[objective.metric] for epoch in trial.epochs],
            seconds=sum(epoch.wall_seconds for epoch in trial.epochs),
        )
        for trial in study.record.started
        if trial.state == "complete"
    ]


def _made(kind: str, runs: Sequence[ForeignRun], seed: int) -> Sequence[ForeignRun]:
    if kind == "shuffled":
        others = np.random.default_rng(derived_seed("history", seed)).permutation(len(runs))
        return [replace(runs[k], params=run.params) for k, run in zip(others, runs, strict=True)]
    if kind == "inverted":
        ends, seconds = [run.curve[-1] for run in runs], [run.seconds for run in runs]
        return [
            replace(
                run,
                curve=[*run.curve[:-1], min(ends) + max(ends) - run.curve[-1]],
                seconds=min(seconds) + max(seconds) - run.seconds,
            )
            for run in runs
        ]
    return runs
