"""Roll-outs while workers start and end: moments that real processes only meet by chance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.settings import Settings
from automl.standalone.serving.sources import PathSource, Place
from automl.standalone.serving.supervisor import Supervisor

OLD, NEW = ({"champion": Place(path=name, version=name, fingerprint=name)} for name in ("old", "new"))


class Worker:
    """A worker in memory, which does something when it is to load a model."""

    def __init__(self, pid: int, when_loading: Callable[[], None] = lambda: None) -> None:
        self.pid, self.has_model, self.problem, self.drained = pid, True, "", False
        self.loads: list[str] = []
        self._when_loading = when_loading

    async def load(self, places: Mapping[str, Place], *, again: bool = False) -> dict[str, str]:
        self._when_loading()
        self.loads.append(places["champion"].path)
        return {"champion": places["champion"].path}

    def tell(self, problem: str) -> None:
        self.problem = problem

    def drain(self) -> None:
        self.drained = True


def fails(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def rolled_out(tmp_path: Path, steps: Callable[[Supervisor, set[Any]], Any]) -> tuple[Supervisor, list[str]]:
    """A supervisor that serves OLD, after some steps, and what it has said."""
    said: list[str] = []

    async def run() -> Supervisor:
        supervisor = Supervisor(Settings(), {"champion": PathSource(str(tmp_path))}, said.append)
        supervisor._good = supervisor._tried = OLD
        await steps(supervisor, supervisor._workers)
        return supervisor

    return asyncio.run(run()), said


def test_a_worker_that_starts_meanwhile_loads_the_new_model_too(tmp_path: Path) -> None:
    late = Worker(2)

    async def steps(supervisor: Supervisor, workers: set[Any]) -> None:
        workers.add(Worker(1, when_loading=lambda: workers.add(late)))
        await supervisor._roll_out(NEW, again=False)

    supervisor, said = rolled_out(tmp_path, steps)
    assert late.loads == ["new"]
    assert supervisor._good == NEW
    assert said == ["now serving new as champion"]


def test_a_model_that_ends_workers_is_tried_by_two_of_them_and_no_more(tmp_path: Path) -> None:
    workers_that_end = [Worker(number, fails(ConnectionError())) for number in range(4)]

    async def steps(supervisor: Supervisor, workers: set[Any]) -> None:
        for number in range(2):
            workers.clear()
            workers.update(workers_that_end)
            supervisor._tried = NEW
            await supervisor._roll_out(NEW, again=False)
            is_tried_again = supervisor._tried != NEW
            assert is_tried_again == (number == 0)

    supervisor, said = rolled_out(tmp_path, steps)
    assert supervisor._good == OLD
    assert said == ["the model that is served stays: MODEL: two workers ended while they loaded it"]
    assert {worker.problem for worker in workers_that_end} == {"MODEL: two workers ended while they loaded it"}


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_that_the_first_worker_refuses_is_asked_of_no_other(tmp_path: Path, count: int) -> None:
    tried: list[int] = []

    def refuse() -> None:
        tried.append(1)
        raise ServeError("MODEL: it is none")

    async def steps(supervisor: Supervisor, workers: set[Any]) -> None:
        workers.update(Worker(number, refuse) for number in range(count))
        await supervisor._roll_out(NEW, again=False)

    supervisor, said = rolled_out(tmp_path, steps)
    assert (supervisor._good, len(tried)) == (OLD, 1)
    assert said == ["the model that is served stays: MODEL: it is none"]
