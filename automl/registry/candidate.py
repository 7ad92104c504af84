"""The model that `automl promote` registers: the model of a point, or the models of a trial's seeds as an ensemble."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from automl.exporting.export_errors import ExportError
from automl.exporting.exports import check_rows, opened_source, opened_sources
from automl.exporting.origins import ensemble_origin, named_point, origin_of, seeds_named
from automl.stored.point_checkpoints import kept_checkpoint
from studies.records.records import ConfirmationRecord, StudyRecord
from studies.results.confirmations import confirmation_by, confirmation_of, spread

if TYPE_CHECKING:
    from automl.exporting.source import Source

_WHAT = "promote"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that may become a version.

    Attributes:
        confirmation: Result of `confirmation_of`, or None. For an ensemble, `metrics` are of its own predictions, and
            `alone` has the metrics of its seeds.
        seeds: Seeds of an ensemble's models, or None for a single model.
    """

    trial: int
    sources: Sequence[Source]
    origin: Mapping[str, Any]
    confirmation: Mapping[str, Any] | None
    seeds: Sequence[int] | None
    objections: Sequence[str]


def candidate(record: StudyRecord, name: str, base_folder: str, model: str | None, *, is_forced: bool) -> Candidate:
    """Return the model that a user names.

    Args:
        name: A point as for `automl export`, or `ensemble`, `ensemble:TRIAL` or `ensemble:TRIAL@EPOCH`.

    Raises:
        StoreError: There is no such model.
        ExportError: It is unconfirmed or misses a threshold, and is not forced; or its predictions cannot be averaged.
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
    source = opened_source(record, checkpoint, base_folder, model, what=_WHAT)
    check_rows(source, what=_WHAT)
    return Candidate(
        trial=trial, sources=[source], origin=origin_of(record, trial, source), confirmation=confirmation, seeds=None,
        objections=against,
    )  # fmt: skip


def _ensemble(
    record: StudyRecord, runs: Sequence[ConfirmationRecord], base_folder: str, model: str | None, *, is_forced: bool
) -> Candidate:
    sources = opened_sources(record, [str(run.checkpoint) for run in runs], base_folder, model, what=_WHAT)
    check_rows(sources[0], what=_WHAT)
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
