"""Formats progress and results of a single training."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from automl.terminal.echo import FAILED, echo
from automl.terminal.output import only_json_on_stdout
from automl.terminal.texts import params_text
from reports.phrases import usd
from studies.results.analysis import jsonable
from studies.results.confirmations import without_errors
from trainers.commands.command import COMMAND
from trainers.contract.task_loading import TaskLoadError
from trainers.contract.user_code import error_line
from trainers.data.epoch_plan import samples_of_rank
from trainers.protocol import OUR_METRICS, TrainingError, operations_path

_LOSSES = ("train_loss", "val_loss")


def rank_line(rank: int, device: str, samples: int, of_samples: int) -> str:
    """Return a line with a rank's device and, if known, its share of the data."""
    shares = f", {samples} of {of_samples} samples in a pass over the data" if of_samples else ""
    return f"rank {rank}: {device}{shares}"


def epoch_line(epoch: int, metrics: Mapping[str, float], seconds: float) -> str:
    """Return a line with an epoch's losses and the task's own metrics."""
    own = without_errors(metrics).items()
    named = {name: value for name, value in own if name in _LOSSES or name not in OUR_METRICS}
    return f"epoch {epoch:3}  {_figures(named)}  {seconds:.3f} s"


def _figures(metrics: Mapping[str, float]) -> str:
    texts = {name: f"{value:.4g}" if 0 < abs(value) < 1e-2 else f"{value:.4f}" for name, value in metrics.items()}
    return "  ".join(f"{name} {text}" for name, text in texts.items())


def shares_of(facts: Mapping[str, Any], world_size: int) -> dict[str, int]:
    """Return each rank's number of samples in one pass over the data."""
    samples, batch = facts["samples"], facts["effective_batch"]
    ranks = range(world_size)
    return {str(rank): samples_of_rank(samples, batch, rank=rank, world_size=world_size) for rank in ranks}


def document(
    task: str,
    params: Mapping[str, Any],
    world_size: int,
    facts: Mapping[str, Any],
    epochs: Iterable[tuple[int, Mapping[str, float], float]],
    *,
    trace: str | None,
    **others: Any,
) -> dict[str, Any]:
    """Return the document of `automl train --json`."""
    named = ("effective_batch", "reference_batch", "base_learning_rate", "scaled_learning_rate", "lr_scaling",
             "model_parameters", "start_epoch")  # fmt: skip
    return {
        "task": task,
        "params": dict(params),
        "world_size": world_size,
        "samples_per_rank": shares_of(facts, world_size),
        **{name: facts[name] for name in named},
        "epochs": [
            {"epoch": epoch, "wall_seconds": seconds, "metrics": jsonable(metrics)}
            for epoch, metrics, seconds in epochs
        ],
        "profile": None if trace is None else _profile(trace),
        "mlflow": None,
    } | others


def _profile(trace: str) -> dict[str, Any] | None:
    path = operations_path(trace)
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return found


def summary_lines(result: Mapping[str, Any], source: str) -> list[str]:
    """Return a training's results as lines for the terminal."""
    per_rank = ", ".join(f"{rank}: {samples}" for rank, samples in result["samples_per_rank"].items())
    last = result["epochs"][-1]["metrics"] if result["epochs"] else {}
    judged = {name: value for name, value in last.items() if name == "val_loss" or name not in OUR_METRICS}
    rates = f"{result['base_learning_rate']:g} scaled to {result['scaled_learning_rate']:g}"
    shares = f"  (samples in a pass by rank: {per_rank})" if any(result["samples_per_rank"].values()) else ""
    name = result.get("study")
    batch = f"effective batch  {result['effective_batch']}  (the learning rate is for {result['reference_batch']})"
    scaled = [batch, f"learning rate    {rates}  ({result['lr_scaling']})"]
    return [
        "",
        f"ranks            {result['world_size']}{shares}",
        *(scaled if result["task"] != COMMAND else [f"parameters       {params_text(result['params'])}"]),
        f"result           {_figures(judged) or 'none: no epoch has ended'}",
        f"time             {result['wall_seconds']:.2f} s with starting the ranks",
        f"cost             {usd(result['cost_usd'])}  ({source})",
        *([f"checkpoint       {result['checkpoint']}"] if result["checkpoint"] else []),
        *([f"study            {name}: `automl status {name}`, `automl report {name}`"] if name else []),
        *(_profile_lines(result["profile"]) if result["profile"] else []),
    ]


def _profile_lines(profile: Mapping[str, Any]) -> list[str]:
    rows = [
        f"  {one['share']:6.1%} {1e3 * one['seconds']:10.2f} ms {one['calls']:7} calls  {one['name']}"
        for one in profile["operations"]
    ]
    steps = f"the longest operations of {profile['steps']} steps on rank 0, without the operations that they call:"
    return [f"trace            {profile['trace']}", "", steps, *rows]


@contextlib.contextmanager
def training_errors(as_json: bool) -> Iterator[None]:
    """Print a failed training's error and exit. With `as_json`, keep the ranks' output out of stdout."""
    try:
        with only_json_on_stdout(as_json):
            yield
    except TaskLoadError:
        raise
    except TrainingError as error:
        message = str(error).strip()
        is_long = "\n" in message  # a traceback, say
        echo(f"error: {error_line(message) if is_long else message}", err=True)
        if is_long:
            echo(f"\n{message}", err=True)
        sys.exit(FAILED)
