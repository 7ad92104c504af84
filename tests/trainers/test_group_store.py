"""The store over which process groups form: it answers who knows its secret, and does what torch's stores do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore  # type: ignore[attr-defined]

from trainers.failures import classify
from trainers.ranks.group_store import StoreClient
from trainers.ranks.group_store_server import StoreServer


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
