"""Names of points of the archive: `12@9`, `12`, or best, cheapest, knee."""

from __future__ import annotations

from automl.stored.point_checkpoints import parse_point
from studies.records.records import StudyRecord
from studies.results import analysis
from studies.results.expected_values import expected_values
from studies.results.recommendation import knee, takeable
from studies.storage.schema.engine import StoreError

NAMES = {
    "best": "the best in the first objective",
    "cheapest": "the one whose training cost least",
    "knee": "the best trade-off: the smallest sum of the objectives, each scaled to its range in the archive",
}


def named_point(record: StudyRecord, text: str) -> tuple[int, int | None]:
    """Return trial and epoch (None: the last kept model); StoreError for another form, or without a kept model."""
    if text not in NAMES:
        return parse_point(text, names=NAMES)
    points = [point for point in takeable(record) if point.checkpoint]
    if not points:
        raise StoreError(f"point: found {text!r}, but the archive of {record.name} has no kept model yet")
    signed = expected_values(record, points)
    if text == "best":
        chosen = min(range(len(points)), key=signed.__getitem__)
    elif text == "knee":
        chosen = points.index(knee(record, points))
    else:
        costs = [_cost_usd(record, point) for point in points]
        chosen = min(range(len(points)), key=lambda place: (costs[place], signed[place]))
    return points[chosen].trial, points[chosen].epoch


def _cost_usd(record: StudyRecord, point: analysis.ArchivePoint) -> float:
    epochs = record.started[point.trial].epochs
    return next(epoch.metrics["cost_usd"] for epoch in epochs if epoch.epoch == point.epoch)
