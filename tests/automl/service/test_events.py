"""The status of a study as events: whenever it changes, through a store that is away, to whom it still concerns."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from automl.service.http import routes_studies as module
from automl.service.team_studies import TeamStudies
from studies.queueing import access_tokens
from tests.support.service import TestedService, spec_of


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)


def watched(service: TestedService) -> TeamStudies:
    """The studies of a user with a token, one of which waits in the queue."""
    identity = access_tokens.identify(service.store, service.token())
    assert identity is not None
    studies = TeamStudies(service.store, service.policy, identity)
    studies.submit(spec_of("a"))
    return studies


async def next_job(stream: AsyncIterator[str]) -> dict[str, Any]:
    while not (text := await asyncio.wait_for(anext(stream), 30.0)).startswith("event: status"):
        assert text.startswith(": still here")
    job: dict[str, Any] = json.loads(text.partition("data: ")[2])["job"]
    return job


def test_priority_and_budget_are_told_and_a_store_that_is_away_ends_nothing(service: TestedService) -> None:
    studies = watched(service)
    refused = []

    def refuse(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if len(refused) < 3:
            refused.append(statement)
            raise OperationalError(statement, None, sqlite3.OperationalError("the server closed the connection"))

    async def watch() -> None:
        stream = module.events(studies, "a")
        assert (await next_job(stream))["priority"] == 0
        studies.set_priority("a", -3)
        assert (await next_job(stream))["priority"] == -3
        with service.store.engine.begin() as connection:
            connection.execute(sa.text("UPDATE automl_jobs SET limit_nano_usd = 7000000000"))
        assert (await next_job(stream))["limit_usd"] == 7.0
        sa.event.listen(service.store.engine, "before_cursor_execute", refuse)
        pending = asyncio.ensure_future(next_job(stream))
        while len(refused) < 3:
            await asyncio.sleep(0.01)
        studies.cancel("a")
        assert (await pending)["state"] == "cancelled"
        assert (await asyncio.wait_for(anext(stream), 30.0)).startswith("event: end")

    asyncio.run(watch())


def test_a_deletion_that_broke_off_ends_the_stream(service: TestedService) -> None:
    studies = watched(service)
    studies.cancel("a")
    service.queue.settle_deleted(studies.job("a"))

    async def watch() -> None:
        stream = module.events(studies, "a")
        assert (await next_job(stream))["state"] == "deleted"
        assert (await asyncio.wait_for(anext(stream), 30.0)).startswith("event: end")

    asyncio.run(watch())


def test_a_token_that_is_revoked_hears_no_more(service: TestedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)
    studies = watched(service)

    async def watch() -> list[str]:
        stream = module.events(studies, "a")
        told = [await asyncio.wait_for(anext(stream), 30.0)]
        access_tokens.revoke(service.store, studies.identity.token_id or 0)
        async with asyncio.timeout(30.0):
            return told + [text async for text in stream]

    told = asyncio.run(watch())
    assert [text for text in told if text.startswith("event: ")] == told[:1], "neither a status nor an end"
