"""The lines that `automl train` ends with."""

from __future__ import annotations

from typing import Any

from reports.wording import usd
from trainers.protocol import OUR_METRICS


def summary_lines(result: dict[str, Any], source: str) -> list[str]:
    """Return what a training has come to, line by line.

    Args:
        result: Result of the training, as `automl train --json` prints it.
        source: Where the price of a slot is from.
    """
    per_rank = ", ".join(f"{rank}: {samples}" for rank, samples in result["samples_per_rank"].items())
    last = result["epochs"][-1]["metrics"] if result["epochs"] else {}
    judged = {name: value for name, value in last.items() if name == "val_loss" or name not in OUR_METRICS}
    validation = "  ".join(f"{name} {value:.4f}" for name, value in judged.items())
    rates = f"{result['base_learning_rate']:g} scaled to {result['scaled_learning_rate']:g}"
    shares = f"  (samples in a pass by rank: {per_rank})" if any(result["samples_per_rank"].values()) else ""
    return [
        "",
        f"ranks            {result['world_size']}{shares}",
        f"effective batch  {result['effective_batch']}  (the learning rate is meant for {result['reference_batch']})",
        f"learning rate    {rates}  ({result['lr_scaling']})",
        f"result           {validation or 'none: no epoch has ended'}",
        f"time             {result['wall_seconds']:.2f} s with starting the ranks",
        f"cost             {usd(result['cost_usd'])}  ({source})",
        *([f"checkpoint       {result['checkpoint']}"] if result["checkpoint"] else []),
        *([_mlflow_line(result["mlflow"])] if result["mlflow"] else []),
        *(_profile_lines(result["profile"]) if result["profile"] else []),
    ]


def _mlflow_line(run: dict[str, Any]) -> str:
    return f"MLflow           run {run['run']} ({run['run_id']}) of the experiment {run['experiment']!r}"


def _profile_lines(profile: dict[str, Any]) -> list[str]:
    rows = [
        f"  {one['share']:6.1%} {1e3 * one['seconds']:10.2f} ms {one['calls']:7} calls  {one['name']}"
        for one in profile["operations"]
    ]
    steps = f"the longest operations of {profile['steps']} steps on rank 0, without the operations that they call:"
    return [f"trace            {profile['trace']}", "", steps, *rows]
