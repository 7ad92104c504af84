"""The MLflow run of a study: spec, data, figures, confirmations and the machine's load."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.untrusted_text import redact, redact_deep
from studies.records.records import NANO, StudyRecord
from studies.results.confirmations import confirmation_of, confirmed_runs, tested, without_errors
from studies.results.constraints import best_values, hypervolume
from studies.storage.reading.reader import load_study
from studies.storage.study_store import Store
from studies.storage.views.mlflow_runs import KnownRun, param_values, points, write
from studies.storage.views.view_rows import MirroredStudy

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput
    from mlflow.tracking import MlflowClient

SPEC_TAG = "automl.spec_sha256"
SPEC_FILE = "spec.json"
CONFIRMED_TAG = "automl.confirmed"  # epoch, number of seeds, part of the data, and the measured objectives, as JSON
FIGURES_SECONDS = 10.0
FIGURES_SHARE = 0.02  # share of a core for computing the figures of a running study, which reads all of its rows
LOAD_SECONDS = 10.0
DIGEST_CHARS = 32  # MLflow takes 36
MOST_HASHED_BYTES = 64 * 2**20
MOST_HASHED_FILES = 10_000
log = logging.getLogger(__name__)


class StudyRun:
    """Updates the MLflow run of one study."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, processor_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._processor_clock = clock, processor_clock
        self._figures_due = self._load_due = -1.0
        self._load: MachineLoad | None = None

    def describe(
        self, client: MlflowClient, run: KnownRun, runs: Mapping[int, KnownRun], store: Store, study: MirroredStudy
    ) -> None:
        """Write a changed spec, and figures, confirmations, test results and load if they are due."""
        _describe_spec(client, run, study)
        metrics: dict[str, float] = {}
        is_over, now = study.state != "running", self._clock()
        if is_over or now >= self._figures_due:
            before = self._processor_clock()
            record = load_study(store, study.name)
            metrics |= figures(record)
            for number in {one.trial for one in record.confirmations} & runs.keys():
                _describe_confirmed(client, runs[number], record, number)
            for one in record.tests:
                if one.metrics and one.trial in runs:  # the same point each time, so writing it again does no harm
                    its = {f"test_{name}": value for name, value in without_errors(tested(one.metrics)).items()}
                    write(client, runs[one.trial], points(its, one.epoch, one.confirmed_at.timestamp()))
            used = self._processor_clock() - before
            self._figures_due = now + max(FIGURES_SECONDS, used / FIGURES_SHARE)
        if not is_over and now >= self._load_due:
            self._load = self._load or MachineLoad()
            metrics |= self._load.metrics()
            self._load_due = now + LOAD_SECONDS
        # The figures of an ended study are always the same point, so writing them again does no harm.
        at = study.ended_at if is_over and study.ended_at is not None else time.time()
        write(client, run, points(metrics, round(at - study.created_at), at))


def figures(study: StudyRecord) -> dict[str, float]:
    """Return money, time, counts, hypervolume, and the best value of each objective."""
    found = {
        "spent_usd": study.cost_nano_usd / NANO,
        "spent_hours": study.alive_seconds / 3600,
        "trials": float(len(study.started)),
        "epochs": float(sum(len(trial.epochs) for trial in study.started)),
    }
    volume = hypervolume(study)
    if volume is not None:
        found["hypervolume"] = volume
    return found | {f"best_{metric}": value for metric, value in best_values(study).items()}


def _describe_confirmed(client: MlflowClient, run: KnownRun, record: StudyRecord, number: int) -> None:
    confirmed = confirmation_of(record, number)
    if confirmed is None:
        return
    metrics: dict[str, float | None] = {}
    for name in (one.metric for one in record.objectives):
        if found := confirmed["metrics"].get(name):
            metrics |= {f"confirmed_{name}": found["mean"], f"confirmed_{name}_deviation": found["deviation"]}
    told = {name: confirmed[name] for name in ("epoch", "seeds", "measured_on")} | metrics
    if run.tags.get(CONFIRMED_TAG) == (tag := json.dumps(told)):
        return
    # MLflow shows the value of the largest step as the latest, so all confirmations use one step.
    at = max(one.confirmed_at for one in confirmed_runs(record, number)).timestamp()
    write(client, run, points(metrics, 0, at), tags={CONFIRMED_TAG: tag})


def spec_params(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the spec as parameters such as `budget.usd`; deeper values as JSON, without credentials."""
    flat: dict[str, object] = {}
    for name, value in spec.items():
        section = value if isinstance(value, Mapping) else None
        flat |= {name: value} if section is None else {f"{name}.{key}": one for key, one in section.items()}
    return param_values({name: _text(value) for name, value in flat.items() if value is not None})


def _text(value: object) -> str:
    return redact(value) if isinstance(value, str) else json.dumps(redact_deep(value))


def _describe_spec(client: MlflowClient, run: KnownRun, study: MirroredStudy) -> None:
    digest = study.spec_sha256
    if run.tags.get(SPEC_TAG) == digest:
        return
    try:
        client.log_text(run.run_id, study.spec_text, SPEC_FILE)
    except Exception as error:  # noqa: BLE001 - a server may store artifacts where this process may not write
        log.warning("the spec cannot be stored in MLflow: %s", redact(str(error)))
    client.log_inputs(run.run_id, datasets(study.spec))
    write(client, run, params=spec_params(study.spec), tags={SPEC_TAG: digest})


def datasets(spec: Mapping[str, Any]) -> list[DatasetInput]:
    """Return a study's data: files at absolute paths in the task's options, else the task itself."""
    options = spec.get("task_options") or {}
    files = {name: Path(one) for name, one in options.items() if isinstance(one, str) and Path(one).is_absolute()}
    found = []
    for name, path in files.items():
        with suppress(OSError, ValueError):  # an option that only looks like a path, or a file without permission
            if path.exists():
                found.append(_input(f"{path.name}", digest_of(path), "local", {"uri": str(path)}, name))
    if found:
        return found
    task = json.dumps([spec.get("task"), options], sort_keys=True, default=str)
    return [_input(str(spec.get("task")), _hash(task.encode()), "code", {"task": str(spec.get("task"))}, "data")]


def _input(name: str, digest: str, source_type: str, source: Mapping[str, str], option: str) -> DatasetInput:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    context = "test" if option.startswith("test") else "training"
    dataset = Dataset(name, digest, source_type, json.dumps(source))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def digest_of(path: Path) -> str:
    """Return a digest of a small file's bytes, else of names, sizes and times of files."""
    if path.is_file() and path.stat().st_size <= MOST_HASHED_BYTES:
        return _hash(path.read_bytes())
    inside = (one for one in path.rglob("*") if one.is_file())
    files = [path] if path.is_file() else list(itertools.islice(inside, MOST_HASHED_FILES))
    facts = [(str(one.relative_to(path)), one.stat().st_size, one.stat().st_mtime_ns) for one in files]
    return _hash(json.dumps(sorted(facts)).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


class MachineLoad:
    """Load of this machine, under MLflow's names."""

    def __init__(self) -> None:
        self._monitors = list(_monitors())
        self.metrics()  # the first call has no earlier measurement to compare with

    def metrics(self) -> dict[str, float]:
        """Return the load since the previous call."""
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found |= {f"system/{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return found


def _monitors() -> Iterator[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

    yield CPUMonitor()  # type: ignore[no-untyped-call]
    try:
        yield GPUMonitor()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - there is no GPU, or no library to ask it
        return
