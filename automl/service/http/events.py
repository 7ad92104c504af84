"""The status of a study as server-sent events, at each change and at its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from sqlalchemy.exc import DBAPIError

from automl.service.http_errors import MissingError
from automl.service.team_studies import TeamStudies
from studies.queueing.access_tokens import lasts
from studies.queueing.jobs import OVER

LOOK_SECONDS = 1.0
SILENCE_SECONDS = 15.0
"""Longest silence, so that proxies keep the connection, and longest time between checks of the caller's token."""


async def events(studies: TeamStudies, name: str) -> AsyncIterator[str]:
    """Yield the events of a study: `status` with the answer of `GET /studies/NAME`, then `end`.

    Silent while the store is away. Stops without `end` when the caller's token becomes invalid.
    """
    seen: tuple[object, ...] = ()
    silent = asked = 0.0
    while True:
        try:
            if asked >= SILENCE_SECONDS:
                asked = 0.0
                if not await asyncio.to_thread(lasts, studies.store, studies.identity):
                    return
            now = await asyncio.to_thread(studies.version, name)
            if now != seen:
                status = await asyncio.to_thread(studies.status, name)
                seen, silent = now, 0.0
                yield f"event: status\ndata: {json.dumps(status, default=str)}\n\n"
                if status["job"]["state"] in OVER:
                    break
        except MissingError:  # it was deleted
            break
        except DBAPIError:  # the answer has begun, so that no status can say it: it is looked again
            pass
        if silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)
        silent += LOOK_SECONDS
        asked += LOOK_SECONDS
    yield "event: end\ndata: {}\n\n"
