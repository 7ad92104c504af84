"""`automl promote`: registers a confirmed model as a version in MLflow, and makes it champion if it is better."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automl.exporting.exports import traced_program
from automl.registry.candidate import Candidate, candidate
from automl.registry.registered import CHALLENGER, CHAMPION, COMPARED_WITH, Registry, Version
from studies.records.records import StudyRecord
from studies.storage.views.mlflow_view import STUDY_UID_TAG

if TYPE_CHECKING:
    from automl.registry.comparison import Comparison


def promote(
    record: StudyRecord, point: str, *, base_folder: str, registry: Registry, name: str, force: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Register the model of a point of the archive, or the models of a trial's seeds as an ensemble.

    Args:
        point: As for `automl export`; or `ensemble`, `ensemble:TRIAL` or `ensemble:TRIAL@EPOCH` for confirmed seeds
            with kept models.
        force: Recorded reason to register it as champion despite objections.

    Returns:
        Plain values: name, version, aliases, an ensemble's seeds, objections, and the comparison with the champion.

    Raises:
        StoreError: There is no such model.
        ExportError: The model is unconfirmed or misses a threshold without `force`, or the registry refuses it.
    """
    new = candidate(record, point, base_folder, model, is_forced=force is not None)
    champion = registry.champion(name)
    with TemporaryDirectory() as scratch:
        compared = None if champion is None else _compared(record, new, registry, champion, Path(scratch))
        version = _registered(record, new, registry, name, force, Path(scratch), champion, compared)
    wins = champion is None or (not isinstance(compared, str | None) and compared.is_better)
    newcomer = None if force is not None else newer_champion(registry, name, champion)
    alias = CHAMPION if force is not None or (wins and newcomer is None) else CHALLENGER
    registry.name_version(version, alias)
    told = [] if compared is None else [str(compared)]
    if newcomer is not None:
        told.append(f"version {newcomer.number} became champion at the same time, and was not compared")
    return {
        "model": name,
        "version": version.number,
        "alias": alias,
        "uri": f"models:/{name}@{alias}",
        "trial": new.trial,
        "epoch": new.origin["epoch"],
        "seeds": None if new.seeds is None else list(new.seeds),
        "objections": list(new.objections),
        "forced": force,
        "former_champion": None if champion is None else champion.number,
        "comparison": "; ".join(told) or None,
    }


def newer_champion(registry: Registry, name: str, before: Version | None) -> Version | None:
    """Return the champion if another promotion has changed it since `before` (None: none). May raise ExportError."""
    now = registry.champion(name)
    return None if now is None or (before is not None and now.number == before.number) else now


def _compared(
    record: StudyRecord, new: Candidate, registry: Registry, champion: Version, scratch: Path
) -> Comparison | str:
    from automl.registry.comparison import compared

    task = new.sources[0].task
    if task is None:
        return "models of training functions cannot be compared sample by sample"
    objective = record.objectives[0]
    try:
        package = registry.package(champion, scratch)
        return compared(
            new.sources, task, package, objective.metric, smaller_is_better=objective.direction == "minimize"
        )
    except Exception as error:  # noqa: BLE001 - files may be gone, and users' code may raise any exception
        return f"the models cannot be compared: {' '.join(str(error).split())[:200] or type(error).__name__}"


def _registered(  # noqa: PLR0917 - one caller passes all of them
    record: StudyRecord, new: Candidate, registry: Registry, name: str, force: str | None, scratch: Path,
    champion: Version | None, compared: Comparison | str | None,
) -> Version:  # fmt: skip
    from automl.exporting.formats import write_mlflow
    from automl.exporting.manifest import manifest_of

    manifest = manifest_of(new.sources, new.origin)
    write_mlflow([traced_program(source, what="promote") for source in new.sources], manifest, scratch / "mlflow")
    metrics = {key: one["mean"] for key, one in (new.confirmation or {"metrics": {}})["metrics"].items()}
    tags = {
        "automl.study": record.name,
        STUDY_UID_TAG: record.uid,
        "automl.trial": str(new.trial),
        "automl.epoch": str(manifest["epoch"]),
        "automl.task": str(manifest["task"]),
        "automl.params": json.dumps(manifest["params"]),
        "automl.data_sha256": str(manifest["data"].get("sha256", "")),
        "automl.confirmed": json.dumps(new.confirmation),
        **({} if new.seeds is None else {"automl.seeds": json.dumps(list(new.seeds))}),
        **({} if force is None else {"automl.forced": force}),
        **({} if compared is None else {"automl.comparison": str(compared)}),
        **({} if champion is None else {COMPARED_WITH: str(champion.number)}),
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
