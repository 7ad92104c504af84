"""Creates, writes and ends MLflow runs, without changing MLflow's global "active run"."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

BY_TAG, BY_SCRIPT, BY_PROMOTION = "automl.by", "script", "promotion"
"""Tag of runs that user code or `automl promote` made, and its values."""
MOST_METRICS = 900  # per call; MLflow takes 1,000 metrics, parameters and tags in all
MOST_PARAMS = 100
MOST_CHARS = 6000
MOST_TAG_CHARS = 5000
MOST_KEY_CHARS = 250
_BAD_KEY = re.compile(r"[^\w\-. :/]")


@dataclass(slots=True)
class KnownRun:
    """A run in MLflow; `status` is RUNNING, FINISHED, FAILED or KILLED."""

    run_id: str
    status: str
    tags: dict[str, str] = field(default_factory=dict)
    params: set[str] = field(default_factory=set)
    name: str = ""


def create(
    client: MlflowClient, experiment: str, tags: Mapping[str, str], name: str | None, started_at: float
) -> KnownRun:
    """Create a run; `started_at` is in seconds since 1970. Without a name, MLflow invents one."""
    cut = {key: value[:MOST_TAG_CHARS] for key, value in tags.items()}
    run = client.create_run(experiment, start_time=round(started_at * 1000), tags=cut, run_name=name)
    return KnownRun(run.info.run_id, run.info.status, dict(run.data.tags) | cut, name=str(run.info.run_name))


def points(metrics: Mapping[str, float | None], step: int, measured_at: float) -> list[Metric]:
    """Return finite metrics as MLflow's points; `measured_at` is in seconds since 1970."""
    from mlflow.entities import Metric

    keys = mlflow_keys(metrics)
    return [
        Metric(keys[name], float(value), round(measured_at * 1000), step)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    ]


def param_values(values: Mapping[str, object]) -> dict[str, str]:
    """Return parameters in a form that MLflow accepts."""
    keys = mlflow_keys(values)
    return {keys[name]: str(value)[:MOST_CHARS] for name, value in values.items()}


def mlflow_keys(names: Iterable[str]) -> dict[str, str]:
    """Return MLflow's name for each name; a hash separates names that would become equal."""
    keys = {name: mlflow_key(name) for name in names}
    taken = Counter(keys.values())
    for name, key in keys.items():
        if taken[key] > 1 and key != name:
            keys[name] = f"{key[: MOST_KEY_CHARS - 9]}_{zlib.crc32(name.encode()):08x}"
    return keys


def mlflow_key(name: str) -> str:
    """Return a name that MLflow accepts, which must also be a relative path."""
    parts = _BAD_KEY.sub("_", name).split("/")
    key = "/".join(part if part.strip(".") else "_" * max(len(part), 1) for part in parts)[:MOST_KEY_CHARS].rstrip("/")
    return f"__{key[2:]}" if key.startswith("..") else key


def write(
    client: MlflowClient,
    run: KnownRun,
    points: Sequence[Metric] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Log points, parameters and tags in batches that MLflow accepts; may be repeated."""
    from mlflow.entities import Param, RunTag

    points = list(points)
    cut = {name: value[:MOST_TAG_CHARS] for name, value in (tags or {}).items()}
    new_tags = {name: value for name, value in cut.items() if value != run.tags.get(name, "")}
    # MLflow refuses another value for a parameter that it has, so the first value stays.
    new_params = [Param(name, value) for name, value in (params or {}).items() if name not in run.params]
    if not (points or new_tags or new_params):
        return
    for start in range(MOST_PARAMS, len(new_params), MOST_PARAMS):
        client.log_batch(run.run_id, params=new_params[start : start + MOST_PARAMS], synchronous=True)
    split = max((len(points) - 1) // (MOST_METRICS - MOST_PARAMS), 0) * (MOST_METRICS - MOST_PARAMS)
    for start in range(0, split, MOST_METRICS - MOST_PARAMS):
        client.log_batch(run.run_id, points[start : start + MOST_METRICS - MOST_PARAMS], synchronous=True)
    last_tags = [RunTag(name, value) for name, value in new_tags.items()]
    client.log_batch(run.run_id, points[split:], new_params[:MOST_PARAMS], last_tags, synchronous=True)
    run.tags |= new_tags
    run.params |= {param.key for param in new_params}


def every(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield the results of all pages of an MLflow search."""
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def set_status(client: MlflowClient, run: KnownRun, status: str, ended_at: float | None) -> None:
    """Set a run's status, and its end in seconds since 1970 (None: now)."""
    if run.status == status:
        return
    if status == "RUNNING":
        client.update_run(run.run_id, status=status)
    else:
        client.set_terminated(run.run_id, status, None if ended_at is None else round(ended_at * 1000))
    run.status = status
