"""Freezing a study's reference point, from what the state machine knows: no event waits until a store has been read."""

from __future__ import annotations

from studies.control.live_study import LiveStudy
from studies.pareto import reference_coordinate
from studies.storage.changes import StudyChanged


def freeze(live: LiveStudy) -> None:
    """Write the automatic reference point, the same that `reference_point` finds in the records of the study."""
    live.outbox.write(StudyChanged(columns={"reference_point": _point(live)}))


def _point(live: LiveStudy) -> dict[str, float] | None:
    """The point by metric, in the metrics' own signs; None without a milestone."""
    objectives = live.setup.objectives
    ends = [
        trial.ends_of(objectives, epoch, values, live.setup.epochs)
        for trial in live.registry.by_id.values()
        for epoch, values in trial.milestones.items()
    ]
    if not ends:
        return None
    columns = zip(objectives, zip(*ends, strict=True), strict=True)
    return {one.metric: one.signed(reference_coordinate(column)) for one, column in columns}
