"""Which rows go through the model together, and when."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from automl.standalone.batches import Encoded, encoded
from automl.standalone.serving.batching import Batcher
from automl.standalone.serving.errors import RequestError

PATIENCE = 60.0
"""A test fails that takes so many seconds, since a batch has waited for nothing."""


class Model:
    """A model in memory that answers each row by its number, once it may; negative numbers it does not take."""

    version = "m/1"

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.may_answer = threading.Event()
        self.has_begun = threading.Event()

    def answers(self, rows: Sequence[Encoded]) -> list[dict[str, Any]]:
        self.has_begun.set()
        assert self.may_answer.wait(PATIENCE)
        numbers = [row.numbers[0] for row in rows]
        self.batches.append(numbers)
        if min(numbers) < 0:
            raise ValueError("a negative number")
        return [{"value": number} for number in numbers]

    def refusal(self, error: Exception) -> RequestError:
        return RequestError(422, str(error))


class Watched:
    def ran(self, version: str, rows: int, seconds: float) -> None: ...

    def waiting(self, rows: int) -> None: ...


def rows(*numbers: float) -> list[Encoded]:
    return [encoded("float32", (1,), [number]) for number in numbers]


def run(steps: Callable[[Batcher, Any], Awaitable[None]], *, wait_seconds: float, batch_rows: int = 8) -> Model:
    """Let steps ask a batcher that waits for others as long as given, and return the model."""
    model = Model()

    async def asked() -> None:
        batcher = Batcher(batch_rows=batch_rows, wait_seconds=wait_seconds, queue_rows=20, watcher=Watched())
        try:
            async with asyncio.timeout(PATIENCE / 2):
                await steps(batcher, model)
        finally:
            model.may_answer.set()
            await asyncio.to_thread(batcher.close)

    asyncio.run(asked())
    return model


async def begun(batcher: Batcher, model: Any, *others: float) -> list[asyncio.Task[Any]]:
    """Have row 0 in the model, and others waiting."""
    tasks = [asyncio.create_task(batcher.answers(model, rows(0.0)))]
    await asyncio.sleep(0)
    await asyncio.to_thread(model.has_begun.wait, PATIENCE)
    tasks += [asyncio.create_task(batcher.answers(model, rows(one))) for one in others]
    await asyncio.sleep(0)
    return tasks


async def crowd(batcher: Batcher, model: Any) -> None:
    """Have a batch of two requests answered, so that the next one waits for company."""
    tasks = await begun(batcher, model, 1.0, 2.0)
    model.may_answer.set()
    await asyncio.gather(*tasks)


def test_a_batch_goes_once_as_many_are_there_as_were_under_way() -> None:
    async def steps(batcher: Batcher, model: Any) -> None:
        await crowd(batcher, model)
        first = asyncio.create_task(batcher.answers(model, rows(3.0)))
        await asyncio.sleep(0)
        second = asyncio.create_task(batcher.answers(model, rows(4.0)))
        assert await asyncio.gather(first, second) == [[{"value": 3.0}], [{"value": 4.0}]]

    assert run(steps, wait_seconds=PATIENCE).batches == [[0.0], [1.0, 2.0], [3.0, 4.0]]


def test_a_batch_waits_no_longer_than_it_may_and_a_row_alone_for_nobody() -> None:
    async def steps(batcher: Batcher, model: Any) -> None:
        await crowd(batcher, model)
        await batcher.answers(model, rows(3.0))

    assert run(steps, wait_seconds=0.01).batches == [[0.0], [1.0, 2.0], [3.0]]

    async def one_by_one(batcher: Batcher, model: Any) -> None:
        model.may_answer.set()
        for number in range(3):
            await batcher.answers(model, rows(float(number)))

    assert run(one_by_one, wait_seconds=PATIENCE).batches == [[0.0], [1.0], [2.0]]


def test_rows_of_a_request_come_back_in_their_order_from_several_batches() -> None:
    async def steps(batcher: Batcher, model: Any) -> None:
        model.may_answer.set()
        answers = await batcher.answers(model, rows(*map(float, range(7))))
        assert [one["value"] for one in answers] == list(map(float, range(7)))

    assert [len(one) for one in run(steps, wait_seconds=0.0, batch_rows=3).batches] == [3, 3, 1]


def test_a_request_that_fails_spoils_no_other_one() -> None:
    async def steps(batcher: Batcher, model: Any) -> None:
        tasks = await begun(batcher, model, 1.0, -2.0, 3.0)
        model.may_answer.set()
        first, one, wrong, three = await asyncio.gather(*tasks, return_exceptions=True)
        assert [first, one, three] == [[{"value": number}] for number in (0.0, 1.0, 3.0)]
        assert isinstance(wrong, RequestError)

    assert run(steps, wait_seconds=0.0).batches == [[0.0], [1.0, -2.0, 3.0], [1.0], [-2.0], [3.0]]


def test_nothing_is_run_of_what_was_given_up_and_its_place_is_free() -> None:
    async def steps(batcher: Batcher, model: Any) -> None:
        tasks = await begun(batcher, model, 1.0)
        given_up = asyncio.create_task(batcher.answers(model, rows(*[5.0] * 19)))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="20 rows wait already, and at most 20 may wait") as refused:
            await batcher.answers(model, rows(6.0))
        assert (refused.value.status, refused.value.retry_seconds) == (429, 1)
        given_up.cancel()
        await asyncio.sleep(0)
        model.may_answer.set()
        await asyncio.gather(*tasks)
        assert (await batcher.answers(model, rows(*[7.0] * 20)))[0] == {"value": 7.0}

    batches = run(steps, wait_seconds=0.0).batches
    assert not any(5.0 in one for one in batches)
    assert sum(map(len, batches)) == 22
