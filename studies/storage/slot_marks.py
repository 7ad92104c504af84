"""Marks: the moment up to which each slot of a pool is charged. They make it impossible to charge a slot-second twice.

    a charge of slot s from `since` to `until` moves its mark from any moment up to `since` to `until`, or is refused

The mark is compared and moved by one UPDATE in the transaction of the charge. So neither a controller that counts
wrongly, nor one that settles a pool which another one has settled, can write a second charge for the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from search_spaces.errors import RunError
from studies.storage import tables as t
from studies.storage.changes import Charged

_MOVE = (
    sa.update(t.slot_marks)
    .where(
        t.slot_marks.c.lease_id == sa.bindparam("of_lease"),
        t.slot_marks.c.slot == sa.bindparam("of_slot"),
        t.slot_marks.c.charged_until <= sa.bindparam("since"),
    )
    .values(charged_until=sa.bindparam("until"))
)


class ChargedTwiceError(RunError):
    """A charge begins before the end of an earlier one of the same slot; nothing of its commit is written."""


def open_slots(connection: sa.Connection, lease_id: int, slots: Iterable[int], at: float) -> None:
    """Add slots that have just come to a pool, charged up to that moment; those there already stay."""
    there = marks(connection, lease_id)
    rows = [{"lease_id": lease_id, "slot": slot, "charged_until": at} for slot in slots if slot not in there]
    if rows:
        connection.execute(sa.insert(t.slot_marks), rows)


def marks(connection: sa.Connection, lease_id: int) -> dict[int, float]:
    """Moment up to which each slot of a pool is charged, in seconds since 1970, by slot."""
    query = sa.select(t.slot_marks.c.slot, t.slot_marks.c.charged_until).where(t.slot_marks.c.lease_id == lease_id)
    return {row.slot: row.charged_until for row in connection.execute(query)}


def move(connection: sa.Connection, lease_id: int, charges: Iterable[Charged]) -> None:
    """Move the marks of the slots that are charged.

    Args:
        connection: Connection in the transaction that writes the charges.
        lease_id: Id of the lease whose pool is charged.
        charges: Charges in their order.

    Raises:
        ChargedTwiceError: A slot-second is charged already, or the pool has no such slot.
    """
    spans: dict[int, tuple[float, float]] = {}
    for charge in charges:
        for slot in charge.slot_numbers:
            first, last = spans.get(slot, (charge.since, charge.since))
            if not last <= charge.since <= charge.at:
                raise _refusal(slot, charge.since, last)
            spans[slot] = (first, charge.at)
    if not spans:
        return
    rows = [
        {"of_lease": lease_id, "of_slot": slot, "since": since, "until": until}
        for slot, (since, until) in sorted(spans.items())
    ]
    if connection.execute(_MOVE, rows).rowcount != len(rows):
        raise _explained(connection, lease_id, rows)


def _explained(connection: sa.Connection, lease_id: int, rows: Sequence[dict[str, float]]) -> ChargedTwiceError:
    there = marks(connection, lease_id)
    for row in rows:
        slot = int(row["of_slot"])
        if slot not in there:
            return ChargedTwiceError(f"charge: found slot {slot}, allowed: slots of the open pool ({sorted(there)})")
        if row["until"] != there[slot]:  # those that were accepted have moved
            return _refusal(slot, row["since"], there[slot])
    return ChargedTwiceError("charge: found a slot-second that is charged already")


def _refusal(slot: int, since: float, charged_until: float) -> ChargedTwiceError:
    return ChargedTwiceError(
        f"charge: found one of slot {slot} from {since!r}, allowed: from {charged_until!r} on, to which it is charged"
    )
