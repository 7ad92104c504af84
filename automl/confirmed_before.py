"""Trainings of a job of the queue that an earlier run of it has ended: the next run trains what is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from studies.control.retraining import Retrained
from studies.storage.changes import Confirmed
from studies.storage.confirmed_rows import confirmed_since_begin_of
from studies.storage.store import Store
from trainers.protocol import TrialSpec


def confirmed_before(
    store: Store, study_id: int, job_id: int | None, specs: Sequence[TrialSpec], ids: Mapping[int, int]
) -> list[Retrained]:
    """Return the results of the trainings that a job need not start any more.

    Args:
        store: Store that holds the study.
        study_id: Id of the study's row.
        job_id: Job that runs; None has no earlier runs: who calls `automl confirm` again has all of it trained again.
        specs: All trainings of the job.
        ids: Ids of the trials' rows by number.
    """
    if job_id is None:
        return []
    return list(_results(specs, ids, confirmed_since_begin_of(store, study_id, job_id)))


def _results(specs: Sequence[TrialSpec], ids: Mapping[int, int], rows: Sequence[Confirmed]) -> Iterator[Retrained]:
    by_point = {(row.trial_id, row.seed, row.epoch): row for row in rows}
    for spec in specs:
        mine = [by_point.get((ids[spec.trial], spec.seed, epoch)) for epoch in spec.test_at]
        found = [_result(spec, row) for row in mine if row is not None]
        if len(found) == len(mine):
            yield replace(found[-1], earlier=tuple(found[:-1]))


def _result(spec: TrialSpec, row: Confirmed) -> Retrained:
    return Retrained(
        spec=spec,
        metrics=row.metrics,
        epochs=row.epochs,
        seconds=row.wall_seconds,
        cost_nano_usd=row.cost_nano_usd,
        checkpoint=row.checkpoint,
    )
