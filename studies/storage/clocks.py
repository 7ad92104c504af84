"""How far clocks of machines are from the database's clock, as far as that can be known.

Leases, workers and tokens run out by the database's clock alone. Moments of charges and epochs are their controllers'
own.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from studies.storage import tables as t
from studies.storage.engine import clock_of
from studies.storage.lease import EXPIRY_SECONDS
from studies.storage.store import Store


def difference_here(store: Store) -> tuple[float, float]:
    """Return by how much this machine's clock is ahead of the database's, and the uncertainty, in seconds."""
    with store.snapshot() as connection:
        asked = sa.select(clock_of(connection))
        connection.execute(asked)  # what opening the connection takes is no part of the round trip
        before, begun = time.time(), time.monotonic()
        there = float(connection.execute(asked).scalar_one())
        half = (time.monotonic() - begun) / 2.0
    return before + half - there, half


def differences_of_controllers(store: Store) -> dict[str, float]:
    """Return by how much the clocks of machines that drive studies are ahead of the database's, in seconds, by host.

    Each heartbeat of a lease notes the moment by both clocks.
    """
    c = t.leases.c
    with store.snapshot() as connection:
        ahead = (c.heartbeat_at - (c.expires_at - EXPIRY_SECONDS)).label("ahead")
        living = (c.released_at.is_(None), c.expires_at > clock_of(connection))
        rows = connection.execute(sa.select(c.host, ahead).where(*living).order_by(c.id)).all()
    return {row.host: float(row.ahead) for row in rows}
