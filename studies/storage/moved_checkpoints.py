"""Rows of a study that name checkpoints which somebody has moved."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from studies.storage import tables as t
from studies.storage.store import Store


def rename_checkpoints(store: Store, study_id: int, new_paths: Mapping[str, str]) -> None:
    """Let all rows of a study that mention a checkpoint name its new place.

    Args:
        store: Store that holds the study.
        study_id: Id of the study's row.
        new_paths: New path or URL of each moved checkpoint, by the one that rows mention.
    """
    mine = sa.select(t.trials.c.id).where(t.trials.c.study_id == study_id)
    mentions = (
        (t.epochs.c.checkpoint, t.epochs.c.trial_id.in_(mine)),
        (t.trials.c.resume_checkpoint, t.trials.c.study_id == study_id),
        (t.confirmations.c.checkpoint, t.confirmations.c.study_id == study_id),
    )
    paths = [{"mentioned": old, "moved_to": new} for old, new in new_paths.items()]
    with store.engine.begin() as connection:
        for column, of_study in mentions:
            update = sa.update(column.table).where(of_study, column == sa.bindparam("mentioned"))
            connection.execute(update.values({column: sa.bindparam("moved_to")}), paths)
