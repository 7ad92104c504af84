"""The status of a study as server-sent events: one whenever it changes, and one when it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from automl.service.errors import MissingError
from automl.service.team_studies import TeamStudies
from studies.queueing.jobs import ENDED

LOOK_SECONDS = 1.0
SILENCE_SECONDS = 15.0
"""Longest time without a line, so that proxies keep the connection."""


async def events(studies: TeamStudies, name: str) -> AsyncIterator[str]:
    """Yield the events of a study: `status` with what `GET /studies/NAME` returns, then `end`.

    Args:
        studies: Studies as the caller may see them.
        name: Name of the study.
    """
    seen: tuple[object, ...] = ()
    silent = 0.0
    while True:
        try:
            now = await asyncio.to_thread(studies.version, name)
            if now != seen:
                seen, silent = now, 0.0
                status = await asyncio.to_thread(studies.status, name)
                yield f"event: status\ndata: {json.dumps(status, default=str)}\n\n"
                if status["job"]["state"] in ENDED:
                    break
        except MissingError:  # it was deleted
            break
        if silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)
        silent += LOOK_SECONDS
    yield "event: end\ndata: {}\n\n"
