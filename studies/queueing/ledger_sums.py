"""Sums of the ledgers of studies; a ledger is summed again only after a commit to its study.

Each worker asks for them every second, and a service for each of its readers, while the history of a team grows to
millions of charges. Every commit that charges something raises the revision of its study, so what was summed at a
revision holds as long as the study has it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from studies.queueing import job_queries as queries

MOST_NAMED = 500
"""Number of studies up to which a query names them; of more it reads all."""


@dataclass(frozen=True, slots=True)
class _Summed:
    """Sums of a ledger at a revision: pairs of the job that has confirmed the study, if one has, and nano-dollars."""

    revision: int
    by_job: tuple[tuple[int | None, int], ...]


_remembered: WeakKeyDictionary[sa.Engine, dict[str, _Summed]] = WeakKeyDictionary()


def ledger_sums(connection: sa.Connection, studies: Collection[str] | None) -> list[tuple[str, int | None, int]]:
    """Return the name of each study, the job that has confirmed it or None for its own, and nano-dollars charged.

    Args:
        connection: Open connection.
        studies: Names of the studies that count; None takes all.
    """
    known = _remembered.setdefault(connection.engine, {})  # which other threads change, too
    # The revisions are read before the sums: without a snapshot, what is committed in between is summed again later.
    rows = _rows(connection, studies)
    sums = {row.uid: one for row in rows if (one := known.get(row.uid)) and one.revision == row.revision}
    changed = [row for row in rows if row.uid not in sums]
    by_study = _summed(connection, [row.id for row in changed])
    sums |= {row.uid: _Summed(row.revision, tuple(by_study.get(row.id, ()))) for row in changed}
    known |= sums
    if studies is None:
        for gone in set(known) - sums.keys():
            known.pop(gone, None)
    return [(row.name, job_id, nano_usd) for row in rows for job_id, nano_usd in sums[row.uid].by_job]


def _rows(connection: sa.Connection, studies: Collection[str] | None) -> list[sa.Row[tuple[int, str, str, int]]]:
    if studies is None or len(studies) > MOST_NAMED:
        return list(connection.execute(queries.ALL_REVISIONS))
    return list(connection.execute(queries.REVISIONS_OF, {"names": list(studies)}))


def _summed(connection: sa.Connection, study_ids: Collection[int]) -> dict[int, list[tuple[int | None, int]]]:
    """Sums of ledgers, by the id of their study."""
    if not study_ids:
        return {}
    of_all = len(study_ids) > MOST_NAMED
    query, named = (queries.ALL_CHARGES, {}) if of_all else (queries.CHARGES_OF, {"study_ids": list(study_ids)})
    found: dict[int, list[tuple[int | None, int]]] = {}
    for study_id, job_id, cost in connection.execute(query, named):
        found.setdefault(study_id, []).append((job_id, int(cost)))
    return found
