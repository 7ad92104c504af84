"""`automl promote`: a confirmed model becomes a version in MLflow's registry, and champion if it is the better one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automl.exporting.errors import ExportError
from automl.exporting.exports import opened_source, traced_program
from automl.exporting.origins import origin_of
from automl.exporting.points import named_point
from automl.registry.registered import CHALLENGER, CHAMPION, Registry, Version
from automl.stored.checkpoints import kept_checkpoint
from studies.confirmations import confirmation_of
from studies.records import StudyRecord

if TYPE_CHECKING:
    from automl.exporting.source import Source
    from automl.registry.comparison import Comparison


def promote(
    record: StudyRecord, point: str, *, base_folder: str, registry: Registry, name: str, force: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Register the model of a point of the archive.

    Args:
        record: Study as committed.
        point: As for `automl export`.
        base_folder: Folder in which the study's own code lies.
        registry: Where it is registered.
        name: Name of the registered model.
        force: Why it is registered and becomes champion whatever speaks against it; recorded.
        model: For a training function: what it called the model in `trial.epochs`.

    Returns:
        Plain values: name, version, aliases, what speaks against it, and the comparison with the champion.

    Raises:
        ExportError: The model was not confirmed or misses a threshold, and `force` gives no reason; or the registry
            does not take it.
    """
    trial, epoch = named_point(record, point)
    checkpoint = kept_checkpoint(record, trial, epoch)
    epoch = next(one.epoch for one in record.started[trial].epochs if one.checkpoint == checkpoint)
    confirmation = confirmation_of(record, trial, epoch)
    against = objections(record, f"{trial}@{epoch}", confirmation)
    if against and force is None:
        raise ExportError(f"promote: {'; '.join(against)}; allowed: --force REASON, which is recorded")
    source = opened_source(record, checkpoint, base_folder, model, what="promote")
    champion = next((one for one in registry.versions(name) if CHAMPION in one.aliases), None)
    with TemporaryDirectory() as scratch:
        compared = None if champion is None else _compared(record, source, registry.package(champion, Path(scratch)))
        version = _registered(record, trial, source, registry, name, confirmation, force, Path(scratch), compared)
    wins = champion is None or force is not None or (not isinstance(compared, str | None) and compared.is_better)
    alias = CHAMPION if wins else CHALLENGER
    registry.name_version(version, alias)
    return {
        "model": name,
        "version": version.number,
        "alias": alias,
        "uri": f"models:/{name}@{alias}",
        "trial": trial,
        "epoch": source.content["position"]["epoch"],
        "objections": against,
        "forced": force,
        "former_champion": None if champion is None else champion.number,
        "comparison": None if compared is None else str(compared),
    }


def objections(record: StudyRecord, point: str, confirmation: Mapping[str, Any] | None) -> list[str]:
    """Return what speaks against a model, such as `12@9`: that it was not confirmed, or which thresholds it misses."""
    if confirmation is None:
        trial = point.partition("@")[0]
        return [f"trial {trial} of {record.name} was not confirmed (`automl confirm {record.name} {point}`)"]
    thresholds = record.spec.get("promotion") or {}
    assert isinstance(thresholds, Mapping)  # noqa: S101 - the spec was checked
    return [said for name, limit in thresholds.items() if (said := _missed(record, confirmation, name, float(limit)))]


def _missed(record: StudyRecord, confirmation: Mapping[str, Any], name: str, limit: float) -> str:
    measured = confirmation["metrics"].get(name)
    if measured is None:
        known = ", ".join(confirmation["metrics"])
        return f"promotion.{name}: found a metric that was not measured, allowed: {known}"
    is_maximized = any(one.metric == name and one.direction == "maximize" for one in record.objectives)
    mean = measured["mean"]
    keeps = mean >= limit if is_maximized else mean <= limit
    if keeps and math.isfinite(mean):
        return ""
    bound = "at least" if is_maximized else "at most"
    return f"promotion.{name}: found {mean:.6g} on the {confirmation['measured_on']} part, allowed: {bound} {limit:g}"


def _compared(record: StudyRecord, source: Source, champion: Path) -> Comparison | str:
    from automl.registry.comparison import compared

    if source.task is None:
        return "models of training functions cannot be compared sample by sample"
    objective = record.objectives[0]
    try:
        return compared(
            source, source.task, champion, objective.metric, smaller_is_better=objective.direction == "minimize"
        )
    except Exception as error:  # noqa: BLE001 - somebody else's champion and the task's code raise what they like
        return f"the two cannot be compared: {' '.join(str(error).split())[:200] or type(error).__name__}"


def _registered(  # noqa: PLR0917 - one caller, which has them all at hand
    record: StudyRecord, trial: int, source: Source, registry: Registry, name: str,
    confirmation: Mapping[str, Any] | None, force: str | None, scratch: Path, compared: Comparison | str | None,
) -> Version:  # fmt: skip
    from automl.exporting.formats import write_mlflow
    from automl.exporting.manifest import manifest_of

    manifest = manifest_of([source], origin_of(record, trial, source))
    write_mlflow([traced_program(source, what="promote")], manifest, scratch / "mlflow")
    metrics = {key: one["mean"] for key, one in (confirmation or {"metrics": {}})["metrics"].items()}
    tags = {
        "automl.study": record.name,
        "automl.study_uid": record.uid,
        "automl.trial": str(trial),
        "automl.epoch": str(manifest["epoch"]),
        "automl.task": str(manifest["task"]),
        "automl.params": json.dumps(manifest["params"]),
        "automl.data_sha256": str(manifest["data"].get("sha256", "")),
        "automl.confirmed": json.dumps(confirmation),
        **({} if force is None else {"automl.forced": force}),
        **({} if compared is None else {"automl.comparison": str(compared)}),
    }
    return registry.register(
        name,
        scratch / "mlflow",
        experiment=record.name,
        tags=tags,
        metrics=metrics,
        params=manifest["params"],
        spec=record.spec,
        at=time.time(),
    )
