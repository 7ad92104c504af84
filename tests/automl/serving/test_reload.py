"""Models that are replaced, and processes that end, while clients ask: only a killed worker's requests are lost."""

import asyncio
import copy
import http.client
import itertools
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from automl.standalone.serving import served_model
from automl.standalone.serving.served_model import ServedModel
from automl.standalone.serving.settings import settings_of
from automl.standalone.serving.sources import PathSource, Place
from tests.automl.serving.models import Expected, lasting
from tests.support.served import Client, Load, Server, served

CLIENTS, PAUSE = 4, 0.02
Content = Callable[[], Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server serves: a name that leads to a folder, so that tests can replace it at once."""
    return tmp_path_factory.mktemp("place") / "model"


@pytest.fixture(scope="module")
def running_pair(
    place: Path, people_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Server]]:
    """Return the server that tests share, started by the first test and again after a test that ended it."""
    started: list[Server] = []
    with ExitStack() as stack:

        def running() -> Server:
            if not started or started[-1].process.poll() is not None:
                put(people_model, place)
                folder = tmp_path_factory.mktemp("pair")
                one = served(folder, place, "--workers", "2", "--poll-seconds", "0.1")
                started.append(stack.enter_context(one))
            return started[-1]

        yield running


@pytest.fixture
def pair(running_pair: Callable[[], Server], place: Path, people_model: Path) -> Server:
    """A server with two workers that serve t/0@2, whatever the test before has put there."""
    one = running_pair()
    if loaded(one, "t/1@2") or any(problems(one)):
        put(people_model, place)
    one.wait_for(lambda: loaded(one, "t/0@2") == 2 and not any(problems(one)))
    return one


@pytest.fixture(scope="module")
def expected(people_model: Path, later_model: Path, rows: list[dict[str, Any]]) -> Expected:
    return Expected({"t/0@2": people_model, "t/1@2": later_model}, rows)


@pytest.fixture
def content(rows: list[dict[str, Any]]) -> Content:
    one = itertools.cycle(rows)
    return lambda: {"row": next(one)}


def put(model: Path, place: Path) -> None:
    """Let a place lead to a copy of a model."""
    fresh = place.parent / f"{model.name} {len(list(place.parent.iterdir()))}"
    shutil.copytree(model, fresh)
    link = place.parent / "link"
    link.symlink_to(fresh)
    link.replace(place)


def loaded(server: Server, version: str) -> float:
    """How many workers have a version."""
    return server.figures().get(f'automl_serve_model_loaded{{model="{version}"}}', 0)


def problems(server: Server) -> list[str]:
    """Why the newest model is not served, by what each worker said last; "" if it is."""
    last = dict(re.findall(r"worker (\d+): (.*)", server.log.read_text()))
    return [last.get(str(worker), "").partition("the served model stays: ")[2] for worker in server.workers()]


def test_a_replaced_model_is_served_without_a_lost_request(pair, place, later_model, expected, content):
    before = pair.log.read_text().count("now serving t/1@2")
    with Load(pair, CLIENTS, content, pause_seconds=PAUSE) as clients:
        clients.more(60)
        put(later_model, place)
        pair.wait_for(lambda: loaded(pair, "t/1@2") == 2 and loaded(pair, "t/0@2") == 0)
        clients.more(60)
    assert not clients.broken
    assert not clients.refused
    expected.check(clients.replies)
    versions = [reply.body["model"] for reply in clients.replies]
    assert (versions[0], versions[-1]) == ("t/0@2", "t/1@2")
    assert pair.log.read_text().count("now serving t/1@2") == before + 2


def test_hangup_loads_the_same_model_again(pair: Server, expected: Expected, content: Content) -> None:
    name = 'automl_serve_loads_total{result="loaded"}'
    before, workers = pair.figures()[name], pair.workers()
    with Load(pair, CLIENTS, content, pause_seconds=PAUSE) as clients:
        pair.signal(signal.SIGHUP)
        pair.wait_for(lambda: pair.figures()[name] == before + 2)
        clients.more(30)
    assert not clients.broken
    expected.check(clients.replies)
    assert pair.workers() == workers


def test_a_model_that_does_not_load_leaves_the_old_one(  # noqa: PLR0917 - fixtures
    pair: Server,
    place: Path,
    people_model: Path,
    later_model: Path,
    tmp_path: Path,
    expected: Expected,
    content: Content,
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(later_model, damaged)
    (damaged / "model.pt2").write_bytes(b"PK")
    with Load(pair, CLIENTS, content, pause_seconds=PAUSE) as clients:
        put(damaged, place)
        pair.wait_for(lambda: all(problems(pair)))
        clients.more(30)
        told = pair.ask("/health")
        assert (told.status, told.body["status"], told.body["model"]) == (200, "ok", "t/0@2")
        assert told.body["problem"].startswith("MODEL: ")
        assert "was not exported by you on this machine" in told.body["problem"]
        put(people_model, place)
        pair.wait_for(lambda: not any(problems(pair)))
        assert pair.ask("/health").body["problem"] is None
    assert not clients.broken
    expected.check(clients.replies)
    assert f"the served model stays: {told.body['problem']}" in pair.log.read_text()


def test_a_model_that_is_gone_for_a_while_is_still_served(pair: Server, place: Path, content: Content) -> None:
    aside = place.with_name("aside")
    with Load(pair, CLIENTS, content, pause_seconds=PAUSE) as clients:
        place.rename(aside)
        pair.wait_for(lambda: all("is not an exported model" in one for one in problems(pair)))
        assert "is not an exported model" in pair.ask("/health").body["problem"]
        aside.rename(place)
        pair.wait_for(lambda: not any(problems(pair)))
        assert pair.ask("/health").body["problem"] is None
        clients.more(30)
    assert clients.statuses.keys() == {200}
    assert not clients.broken


@pytest.mark.medium
def test_of_a_killed_worker_only_what_it_held_is_lost(pair: Server, expected: Expected, content: Content) -> None:
    before, served = set(pair.workers()), pair.ask("/health").body["model"]
    killed = min(before)
    with Load(pair, CLIENTS, content, pause_seconds=PAUSE) as clients:
        clients.more(30)
        os.kill(killed, signal.SIGKILL)
        pair.wait_for(lambda: len(set(pair.workers()) - {killed}) == 2)
        pair.wait_for(lambda: loaded(pair, served) == 2)
        clients.more(60)
    assert len(clients.broken) <= CLIENTS
    assert not clients.refused
    assert not clients.lost
    expected.check(clients.replies)
    assert f"Worker (pid:{killed}) was sent SIGKILL!" in pair.log.read_text()
    assert len(before & set(pair.workers())) == 1


@pytest.mark.medium
def test_a_signal_to_end_lets_what_was_taken_be_answered(pair: Server, expected: Expected, content: Content) -> None:
    with Load(pair, CLIENTS, content, pause_seconds=PAUSE) as clients:
        clients.more(60)
        pair.signal(signal.SIGTERM)
        assert pair.ended() == 0
    # A client may send just when its idle connection is closed; nobody gets half an answer.
    assert len(clients.broken) <= CLIENTS
    assert all(isinstance(one, ConnectionError) for one in clients.broken), clients.broken
    expected.check(clients.replies)
    with pytest.raises(ConnectionRefusedError):
        pair.ask("/health")
    assert "Traceback" not in pair.log.read_text()


@pytest.mark.medium
def test_requests_that_wait_are_answered_before_the_end_and_a_second_signal_ends_at_once(cubes_model, tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM):
        with served(tmp_path, cubes_model, "--batch-rows", "1") as server, ThreadPoolExecutor(8) as pool:
            (worker,) = server.workers()
            is_hurried = number == signal.SIGTERM
            waiting = [pool.submit(_status, server.client(), 2000 if is_hurried else 900) for _ in range(8)]
            server.wait_for(lambda server=server: server.figures()["automl_serve_waiting_rows"] >= 3)
            server.signal(number)
            server.wait_for(lambda server=server: not _accepts(server))
            if is_hurried:
                server.signal(number)
            statuses = [one.result() for one in waiting]
            assert (0 in statuses) == is_hurried
            assert is_hurried or statuses == [200] * 8
            assert server.ended() == 0
            _wait_until_gone(worker)


@pytest.mark.medium
def test_workers_end_with_a_master_that_was_killed(cubes_model: Path, tmp_path: Path) -> None:
    with served(tmp_path, cubes_model) as server:
        (worker,) = server.workers()
        server.process.kill()
        server.process.wait()
        _wait_until_gone(worker)


def _status(client: Client, length: int) -> int:
    """What a client is answered; 0 where its connection breaks."""
    try:
        return client.ask("/predict", lasting(length)).status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        client.close()


def _accepts(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _wait_until_gone(process: int) -> None:
    with suppress(ProcessLookupError, FileNotFoundError):
        watched = os.pidfd_open(process)
        try:
            import select

            assert select.select([watched], [], [], 60)[0]
        finally:
            os.close(watched)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_requests(place, people_model, later_model, expected, content, tmp_path):  # noqa: PLR0917
    """A reload in the middle, a worker killed and garbage all the time."""
    put(people_model, place)
    with served(tmp_path, place, "--workers", "2") as server, Load(server, 16, content) as clients:
        server.wait_for(lambda: loaded(server, "t/0@2") == 2)
        clients.more(40_000)
        put(later_model, place)
        server.wait_for(lambda: loaded(server, "t/1@2") == 2)
        os.kill(server.workers()[0], signal.SIGKILL)
        for number in range(60):
            server.raw(os.urandom(3000))
            server.raw(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{" + b"x" * number)
            clients.more(1000)
    told = {"lost": len(clients.lost), "broken_connections": len(clients.broken), "refused": len(clients.refused)}
    print(f"{len(clients.replies)} answers, {told}")
    assert told["lost"] == told["refused"] == 0
    assert told["broken_connections"] <= 16, "a killed worker breaks no more connections than each client's"
    assert len(clients.replies) >= 100_000
    expected.check(clients.replies)


def test_a_load_that_hangs_is_told_and_holds_up_no_other_worker(tmp_path, monkeypatch):
    over, said = threading.Event(), list[str]()
    monkeypatch.setattr(served_model, "LOAD_SECONDS", 0.2)
    good = SimpleNamespace(version="good")
    monkeypatch.setattr(
        served_model, "load_served", lambda path, *_, **__: over.wait(30.0) if path == "hangs" else good
    )
    first = ServedModel(settings_of({}), PathSource("model"), tmp_path, said.append)
    second = copy.copy(first)

    async def load() -> None:
        places = [Place(path=path, version="1", fingerprint=path) for path in ("hangs", "good")]
        await first._load(places[0])
        assert first.problem == "MODEL: hangs has not loaded within 0.2 s"
        for one in (second, first):
            await asyncio.wait_for(one._load(places[1]), 10.0)
            assert (one.served.version, one.problem) == ("good", "")
        over.set()

    asyncio.run(load())
