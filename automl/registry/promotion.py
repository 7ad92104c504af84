"""`automl promote`: registers a confirmed model as a version in MLflow, and as champion if it is better."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.exports import check_rows, opened_source, opened_sources, traced_program
from automl.exporting.origins import ensemble_origin, named_point, origin_of, seeds_named
from automl.registry.registered import CHALLENGER, CHAMPION, COMPARED_WITH, Registry, Version
from automl.stored.open_store import kept_checkpoint
from studies.records.records import ConfirmationRecord, StudyRecord
from studies.results.confirmations import confirmation_by, confirmation_of, spread
from studies.storage.views.mlflow_view import STUDY_UID_TAG

if TYPE_CHECKING:
    from automl.exporting.source import Source
    from automl.registry.comparison import Comparison


def promote(
    record: StudyRecord, point: str, *, base_folder: str, registry: Registry, name: str, force: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Register a saved model of a study, or the models of a trial's seeds as an ensemble.

    Args:
        point: As for `automl export`; or `ensemble`, `ensemble:TRIAL` or `ensemble:TRIAL@EPOCH` for confirmed seeds
            with saved models.
        force: Recorded reason to make the model champion despite objections.

    Returns:
        The version as plain values, with objections and the comparison with the champion.

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
    """Return the champion if it is another than `before`. Raises ExportError if the registry fails."""
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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that may become a version in the registry.

    Attributes:
        confirmation: From `confirmation_of`, or None. An ensemble has its own `metrics`, and its seeds' in `alone`.
        seeds: Seeds of an ensemble, or None.
    """

    trial: int
    sources: Sequence[Source]
    origin: Mapping[str, Any]
    confirmation: Mapping[str, Any] | None
    seeds: Sequence[int] | None
    objections: Sequence[str]


def candidate(record: StudyRecord, name: str, base_folder: str, model: str | None, *, is_forced: bool) -> Candidate:
    """Return the model to register, with its confirmation. `name` is `point` of `promote`.

    Raises:
        StoreError: There is no such model.
        ExportError: The model is unconfirmed or misses a threshold, not forced; or its predictions have no mean.
    """
    seeds = seeds_named(record, name)
    if seeds is not None:
        return _ensemble(record, seeds, base_folder, model, is_forced=is_forced)
    trial, epoch = named_point(record, name)
    checkpoint = kept_checkpoint(record, trial, epoch)
    epoch = next(one.epoch for one in record.started[trial].epochs if one.checkpoint == checkpoint)
    confirmation = confirmation_of(record, trial, epoch)
    against = _objections(record, f"{trial}@{epoch}", confirmation)
    _refuse(against, is_forced=is_forced)  # before torch is loaded
    source = opened_source(record, checkpoint, base_folder, model, what="promote")
    check_rows(source, what="promote")
    return Candidate(
        trial=trial, sources=[source], origin=origin_of(record, trial, source), confirmation=confirmation, seeds=None,
        objections=against,
    )  # fmt: skip


def _ensemble(
    record: StudyRecord, runs: Sequence[ConfirmationRecord], base_folder: str, model: str | None, *, is_forced: bool
) -> Candidate:
    sources = opened_sources(record, [str(run.checkpoint) for run in runs], base_folder, model, what="promote")
    check_rows(sources[0], what="promote")
    trial, confirmation = runs[0].trial, _confirmed_together(runs, sources)
    against = _objections(record, f"{trial}@{runs[0].epoch}", confirmation)
    _refuse(against, is_forced=is_forced)
    return Candidate(
        trial=trial,
        sources=sources,
        origin=ensemble_origin(record, runs) | {"confirmed": confirmation},
        confirmation=confirmation,
        seeds=[run.seed for run in runs],
        objections=against,
    )


def _confirmed_together(runs: Sequence[ConfirmationRecord], sources: Sequence[Source]) -> dict[str, Any]:
    from automl.exporting.ensemble_scores import check_kind, mean, measured, part_of, part_of_test

    check_kind(sources[0])
    test = part_of_test(sources)
    part = part_of(sources, "validation") if test is None else test
    found = measured(sources[0], mean(part.answers), part.targets)
    alone = confirmation_by(runs)
    return {
        **alone,
        "measured_on": "validation" if test is None else "test",
        "metrics": {name: spread([value]) for name, value in found.items() if math.isfinite(value)},
        "alone": alone["metrics"],
    }


def _refuse(objections: Sequence[str], *, is_forced: bool) -> None:
    if objections and not is_forced:
        raise ExportError(f"promote: {'; '.join(objections)}. To register it anyway, pass --force REASON")


def _objections(record: StudyRecord, point: str, confirmation: Mapping[str, Any] | None) -> list[str]:
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
        return f"promotion.{name}: this metric was not measured. Name one of {known}"
    is_maximized = any(one.metric == name and one.direction == "maximize" for one in record.objectives)
    mean = measured["mean"]
    keeps = mean >= limit if is_maximized else mean <= limit
    if keeps and math.isfinite(mean):
        return ""
    bound = "at least" if is_maximized else "at most"
    return f"promotion.{name}: found {mean:.6g} on the {confirmation['measured_on']} part, allowed: {bound} {limit:g}"
