"""Where process groups form: a store that answers who knows its secret, and ranks that wait there for each other."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from trainers.failures import classify
from trainers.protocol import LostError
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreAddress, StoreServer
from trainers.ranks.process_group import Group, destroy_group, form_group
from trainers.ranks.rendezvous import Presence, _Watch


@pytest.fixture
def server() -> Iterator[StoreServer]:
    one = StoreServer()
    yield one
    one.close()


@pytest.fixture
def client(server: StoreServer) -> StoreClient:
    return StoreClient(server.address, 5.0)


@pytest.mark.medium
def test_it_does_what_torch_asks_of_a_store_and_waits_as_long_as_it_is_told(client, server) -> None:
    store = PrefixStore("group", client)
    store.set("a", "one")
    assert store.get("a") == b"one"
    assert [store.add("n", 1), store.add("n", 41)] == [1, 42]
    assert store.check(["a", "n"])
    assert not store.check(["a", "none"])
    store.wait(["a", "n"])
    store.wait(["a"], timedelta(seconds=1))
    assert store.compare_set("a", "one", "two") == b"two"
    assert store.compare_set("a", "one", "three") == b"two"
    client.append("group/a", "!")
    assert store.get("a") == b"two!"
    assert client.num_keys() == 2
    assert store.delete_key("a")
    assert not store.delete_key("a")
    store.set("binary", bytes(range(256)) * 4096)
    assert store.get("binary") == bytes(range(256)) * 4096
    assert client.clone().get("group/n") == b"42"
    other = StoreClient(server.address, 5.0)
    timer = threading.Timer(0.05, lambda: other.set("late", "x"))
    timer.start()
    assert client.get("late") == b"x"
    with pytest.raises(DistStoreError, match="timed out") as caught:
        client.wait(["never"], timedelta(seconds=0.01))
    assert classify(caught.value).failure == "lost"
    timer.join()


@pytest.mark.medium
def test_nobody_gets_in_without_the_secret_and_no_server_without_it_is_trusted(server, client) -> None:
    client.set("a", "untouched")
    with pytest.raises(DistNetworkError, match="failed to connect"):
        StoreClient(replace(server.address, secret="guessed"), 5.0)
    for said in (b"", b"\0" * 48, b"GET / HTTP/1.1\r\n\r\n" * 9, b"\xff" * 4096):
        with socket.create_connection((server.address.host, server.address.port), timeout=5) as connection:
            answer = b""
            with suppress(OSError):  # the server closes the connection at the first wrong proof
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(4096):
                    answer += part
        assert len(answer) <= 16, "nothing but its random bytes"
    assert client.get("a") == b"untouched"
    assert server.address.secret not in repr(server.address)
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = replace(server.address, port=impostor.getsockname()[1])

        def serve() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(b"\0" * 16)
                connection.recv(48)
                connection.sendall(b"\0" * 32)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DistNetworkError, match="does not know the secret"):
            StoreClient(address, 5.0)
        thread.join()


def present(server: StoreServer, rank: int, world_size: int, deadline_seconds: float) -> Presence:
    return Presence(StoreClient(server.address, 30.0), rank, world_size, deadline_seconds)


@pytest.mark.medium
def test_the_quick_ones_wait_for_the_last(server: StoreServer) -> None:
    ranks = [present(server, rank, 3, 60.0) for rank in range(3)]
    waiting = [threading.Thread(target=rank.wait_for_all) for rank in ranks[:2]]
    for thread in waiting:
        thread.start()
    waiting[0].join(0.2)
    assert all(thread.is_alive() for thread in waiting)
    ranks[2].wait_for_all()
    for thread in waiting:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("started", "words"),
    [(False, "rank 1 of 2 has not started within the deadline of 0.3 s"), (True, "rank 1 of 2 sent no heartbeat")],
)
def test_a_rank_that_is_gone_is_given_up(server: StoreServer, started: bool, words: str) -> None:
    deadline = 0.3
    if started:
        present(server, 1, 2, deadline).close()
    with closing(present(server, 0, 2, deadline)) as here, pytest.raises(LostError, match=words):
        here.wait_for_all()


def test_a_rank_is_waited_for_while_it_is_heard_of_or_has_come(server, caplog) -> None:
    """By a clock of the test's own: an hour with a beat in each look, then silence for as long as the deadline."""
    with closing(present(server, 0, 2, 60.0)) as here:
        watch = _Watch(here, 0.0)
        for second in range(1, 3600, 30):
            here.store.add("beat 1", 1)
            watch.look(float(second))
        assert caplog.messages[0] == "rank 0 waits for rank 1, still loading task or data"
        assert len(caplog.messages) == 59, "once in each deadline"
        watch.look(3571 + 60.0)
        with pytest.raises(LostError, match="or set a longer deadline"):
            watch.look(3571 + 66.0)
    with closing(present(server, 0, 3, 60.0)) as here:
        watch = _Watch(here, 0.0)
        here.store.set("here 1", "yes")
        with pytest.raises(LostError, match="rank 2 of 3 has not started"):
            watch.look(61.0)


def _deadline_of_the_store(group: Group, address: StoreAddress) -> tuple[timedelta, float]:
    destroy_group()
    client = StoreClient(address, 60.0)
    form_group(client, "own deadline", group.rank, group.world_size, timeout_seconds=20.0)
    return _get_default_store().timeout, client._timeout_seconds  # type: ignore[attr-defined]


def test_a_group_gives_its_store_its_own_deadline_and_gloo_sums_bf16(ranks: Any, server: StoreServer) -> None:
    """NCCL's identifier and DDP's first exchange go over the store."""
    assert ranks.run(2, _deadline_of_the_store, server.address) == [(timedelta(seconds=20), 20.0)] * 2
    # So `compress: bf16` needs no NCCL between ranks that share GPUs.
    assert ranks.run(2, _sums_bf16) == [[2.0] * 3] * 2


def _sums_bf16(_group: object) -> list[float]:
    values = torch.ones(3, dtype=torch.bfloat16)
    dist.all_reduce(values)
    return [float(value) for value in values]
