"""Histories as other tools leave them: W&B's CSV exports, an MLflow experiment, an Optuna study, Ray Tune's folder."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna

from tests.support.databases import mlflow_database

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """One run: its curve of `metric`, its seconds, and whether a pruner ended it."""

    params: Mapping[str, Any]
    curve: Sequence[float]
    seconds: float
    is_pruned: bool = False


def wandb(folder: Path, runs: Sequence[ForeignRun], metric: str, direction: str = "minimize") -> list[str]:
    """The tables of runs and of curves that W&B exports."""
    names = list(dict.fromkeys(name for run in runs for name in run.params))
    head = ["Name", "State", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", *names, metric]
    rows = [
        [f"run-{k}", "killed" if run.is_pruned else "finished", "", "me", "", BEGIN.isoformat(), run.seconds, "",
         *[run.params.get(name, "") for name in names], run.curve[-1]]
        for k, run in enumerate(runs)
    ]  # fmt: skip
    write_csv(folder / "runs.csv", [head, *rows])
    columns = [f"run-{k} - {metric}{end}" for k in range(len(runs)) for end in ("", "__MIN", "__MAX")]
    longest = max(len(run.curve) for run in runs)
    curves = [[*run.curve, *[""] * (longest - len(run.curve))] for run in runs]
    lines = [[step, *[curve[step] for curve in curves for _ in range(3)]] for step in range(longest)]
    write_csv(folder / "curves.csv", [["Step", *columns], *lines])
    return ["--from", str(folder / "runs.csv"), "--from", str(folder / "curves.csv")]


def write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def mlflow(folder: Path, runs: Sequence[ForeignRun], metric: str, direction: str = "minimize") -> list[str]:
    """An experiment `old runs`, with a point of the metric every 50 steps."""
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    path = folder / "old.db"
    path.write_bytes(mlflow_database())
    client = MlflowClient(f"sqlite:///{path}")
    experiment = client.create_experiment("old runs", artifact_location=str(folder))
    for k, run in enumerate(runs):
        begin = int(BEGIN.timestamp() * 1000) + k
        run_id = client.create_run(experiment, start_time=begin).info.run_id
        points = [Metric(metric, value, begin + step, 50 * step) for step, value in enumerate(run.curve, start=1)]
        client.log_batch(run_id, points, [Param(name, str(value)) for name, value in run.params.items()])
        status = "KILLED" if run.is_pruned else "FINISHED"
        client.set_terminated(run_id, status, end_time=begin + round(1000 * run.seconds))
    return ["--from", f"mlflow:sqlite:///{path}#old runs"]


def optuna_study(folder: Path, runs: Sequence[ForeignRun], metric: str, direction: str = "minimize") -> list[str]:
    """A study `mine` with one objective, whose name is the metric's."""
    url = f"sqlite:///{folder / 'optuna.db'}"
    study = optuna.create_study(study_name="mine", storage=url, direction=direction)
    study._storage.set_study_system_attr(study._study_id, "study:metric_names", [metric])  # type: ignore[attr-defined]
    for run in runs:
        trial = optuna.trial.create_trial(
            params=dict(run.params),
            distributions={name: _distribution([one.params.get(name) for one in runs]) for name in run.params},
            state=optuna.trial.TrialState.PRUNED if run.is_pruned else optuna.trial.TrialState.COMPLETE,
            value=run.curve[-1],
            intermediate_values=dict(enumerate(run.curve)),
        )
        trial.datetime_start = BEGIN.replace(tzinfo=None)
        trial.datetime_complete = trial.datetime_start + timedelta(seconds=run.seconds)
        study.add_trial(trial)
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    return ["--from", f"optuna:{url}#mine"]


def _distribution(values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    known = [value for value in values if value is not None]
    if any(isinstance(value, str | bool) for value in known):
        return optuna.distributions.CategoricalDistribution(sorted(set(known)))
    if all(isinstance(value, int) for value in known):
        return optuna.distributions.IntDistribution(min(known), max(known))
    return optuna.distributions.FloatDistribution(min(known), max(known))


def ray(folder: Path, runs: Sequence[ForeignRun], metric: str, direction: str = "minimize") -> list[str]:
    """A results folder of Ray Tune, with the keys of version 2.60."""
    for k, run in enumerate(runs):
        own = folder / "ray_results" / f"train_{k:05}"
        own.mkdir(parents=True)
        (own / "params.json").write_text(json.dumps(run.params, indent=2))
        lines = [
            {metric: value, "timestamp": 1, "done": step == len(run.curve), "training_iteration": step,
             "trial_id": f"{k:05}", "time_total_s": run.seconds * step / len(run.curve), "config": run.params}
            for step, value in enumerate(run.curve, start=1)
        ]  # fmt: skip
        (own / "result.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return ["--from", f"ray:{folder / 'ray_results'}"]


WRITERS: Mapping[str, Callable[[Path, Sequence[ForeignRun], str, str], list[str]]] = {
    "wandb": wandb, "mlflow": mlflow, "optuna": optuna_study, "ray": ray,
}  # fmt: skip
