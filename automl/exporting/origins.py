"""Origins of exported models: a saved model of the search, or seeds that confirmed its trial."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from automl.exporting.atomic_outputs import ExportError
from automl.stored.open_store import parse_point
from studies.records.records import NANO, ConfirmationRecord, StudyRecord
from studies.results.confirmations import confirmation_by, confirmation_of
from studies.results.recommendation import expected_values, knee, ranked_points, recommended, takeable
from studies.storage.schema.engine import StoreError

if TYPE_CHECKING:
    from automl.exporting.source import Source

NAMES = {
    "best": "the recommended model: the best value of the first objective, and within its noise a finished one",
    "cheapest": "the cheapest training",
    "knee": "the best trade-off: the smallest sum of the objectives, each scaled to its range in the archive",
}
FOLDERS = ("package", "mlflow", "docker")
ENSEMBLE = "ensemble"
"""Name of a trial's seeds instead of a point: `ensemble`, `ensemble:TRIAL` or `ensemble:TRIAL@EPOCH`."""
_OF_TRIAL = re.compile(r"(?P<trial>\d{1,9})(?:@(?P<epoch>\d{1,9}))?", re.ASCII)


def named_point(record: StudyRecord, text: str) -> tuple[int, int | None]:
    """Return trial and epoch (None: last saved epoch) of a named model. Raises StoreError if it is not saved."""
    if text not in NAMES:
        return parse_point(text, names=NAMES)
    points = [point for point in takeable(record) if point.checkpoint]
    if not points:
        raise StoreError(f"{text!r} cannot be chosen, because {record.name} has no saved models yet")
    if text == "best" and (found := recommended(record)) is not None:
        chosen = found.point
    elif text == "knee":
        chosen = knee(record, points)
    else:
        signed = expected_values(record, points)
        costs = [_cost_usd(record, one.trial, one.epoch) for one in points]
        chosen = points[min(range(len(points)), key=lambda place: (costs[place], signed[place]))]
    return chosen.trial, chosen.epoch


def _cost_usd(record: StudyRecord, trial: int, epoch: int) -> float:
    return next(one.metrics["cost_usd"] for one in record.started[trial].epochs if one.epoch == epoch)


def origin_of(record: StudyRecord, trial: int, source: Source) -> dict[str, Any]:
    """Return a saved model's origin for the manifest: study, trial, epoch, cost."""
    epoch = int(source.content["position"]["epoch"])
    return {
        **_of_trial(record, trial, confirmation_of(record, trial, epoch)),
        "epoch": epoch,
        "values": values_at(record, trial, epoch),
        "cost_usd": _cost_usd(record, trial, epoch),
    }


def ensemble_origin(record: StudyRecord, runs: Sequence[ConfirmationRecord]) -> dict[str, Any]:
    """Return the origin of confirmed seeds for the manifest. `values` are means."""
    names = [one.metric for one in record.objectives if all(one.metric in run.metrics for run in runs)]
    return {
        **_of_trial(record, runs[0].trial, confirmation_by(runs)),
        "epoch": min(run.epochs for run in runs),
        "values": {name: sum(run.metrics[name] for run in runs) / len(runs) for name in names},
        "cost_usd": sum(run.cost_nano_usd for run in runs) / NANO,
        "seeds": [run.seed for run in runs],
    }


def kept_ensemble(record: StudyRecord, point: str, form: str) -> list[ConfirmationRecord]:
    """Return a model's confirmation trainings with saved models; without an epoch, see `seeds_named`.

    Raises ExportError if no such models are saved, or the format holds one model, StoreError for a malformed point.
    """
    if form not in FOLDERS:
        raise ExportError(f"--ensemble: --format {form} holds one model. Use one of {', '.join(FOLDERS)}")
    trial, epoch = named_point(record, point)
    is_of_epoch = "@" in point
    runs = _kept(record, trial, epoch if is_of_epoch else None)
    if not runs:
        after = f" after epoch {epoch}" if is_of_epoch else ""
        raise ExportError(
            f"--ensemble: trial {trial} has no saved models of several seeds{after}. Train them with `automl confirm "
            f"{record.name} {point if is_of_epoch else trial} --keep-models`"
        )
    return runs


def seeds_named(record: StudyRecord, text: str) -> list[ConfirmationRecord] | None:
    """Return the saved seeds of `ensemble`, `ensemble:TRIAL` or `ensemble:TRIAL@EPOCH`; None for other texts.

    The default trial has the best expected value and two saved models, the default epoch is the last confirmed epoch.
    Raises StoreError, with the command that trains such models, if there are none.
    """
    name, sign, rest = text.partition(":")
    if name != ENSEMBLE:
        return None
    trials = sorted({run.trial for run in record.confirmations})
    kept = {trial: runs for trial in trials if len(runs := _kept(record, trial)) > 1}
    if sign:
        named = _OF_TRIAL.fullmatch(rest)
        epoch = named["epoch"] if named else None
        runs = _kept(record, int(named["trial"]), int(epoch) if epoch else None) if named else []
        if len(runs) < 2:
            have = f". Name one of {', '.join(f'{ENSEMBLE}:{trial}' for trial in kept)}" if kept else ""
            raise StoreError(f"{text!r} needs saved models of at least two seeds, but has none{have or _how(record)}")
        return runs
    if not kept:
        raise StoreError(f"{text!r} needs a trial with saved models of at least two seeds{_how(record)}")
    points = takeable(record)
    ranked = ranked_points(record, points) if points else []
    inside = [one.trial for one in ranked if one.trial in kept and kept[one.trial][0].epoch == one.epoch]
    return kept[inside[0] if inside else max(kept, key=lambda trial: max(run.confirmed_at for run in kept[trial]))]


def _how(record: StudyRecord) -> str:
    return f". Train some with `automl confirm {record.name} best --seeds 3 --keep-models`"


def values_at(record: StudyRecord, trial: int, epoch: int) -> dict[str, float]:
    """Return a trial's objectives at an epoch, from the record, because checkpoints have no costs."""
    metrics = next(one.metrics for one in record.started[trial].epochs if one.epoch == epoch)
    return {objective.metric: metrics[objective.metric] for objective in record.objectives}


def _kept(record: StudyRecord, trial: int, epoch: int | None = None) -> list[ConfirmationRecord]:
    """Return a trial's trainings with saved models at an epoch; None: the last epoch, if possible with two seeds."""
    runs = [
        run
        for run in record.confirmations
        if run.trial == trial and run.checkpoint is not None and epoch in {None, run.epoch}
    ]
    counts = Counter(run.epoch for run in runs)
    latest = max(runs, key=lambda run: (counts[run.epoch] > 1, run.confirmed_at), default=None)
    return [run for run in runs if latest is not None and run.epoch == latest.epoch]


def _of_trial(record: StudyRecord, trial: int, confirmed: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"study": record.name, "trial": trial, "study_cost_usd": record.cost_nano_usd / NANO, "confirmed": confirmed}
