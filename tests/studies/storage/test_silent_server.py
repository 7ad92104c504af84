"""A PostgreSQL that does not answer any more is given up after seconds, and waited for like one that is away."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from studies.storage.schema import engine as engines
from studies.storage.schema.engine import make_engine, parse_url
from studies.storage.views.optuna_view import open_storage
from studies.storage.writing.retrying import is_away
from tests.support.lost_answers import CuttingProxy


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a host that accepts connections and says nothing, as one whose server is frozen."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def waited_for(url: str) -> float:
    """Seconds after which a connection to a database is given up as one that is away."""
    began = time.monotonic()
    with pytest.raises(DBAPIError) as raised:
        make_engine(url).connect()
    assert is_away(raised.value)
    return time.monotonic() - began


def test_a_server_that_says_nothing_is_away(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.POSTGRESQL_TIMEOUTS, "connect_timeout", 2)
    assert waited_for(f"postgresql://u:p@127.0.0.1:{silent}/d") >= 1.0


def test_the_url_has_the_last_word(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.POSTGRESQL_TIMEOUTS, "connect_timeout", 600)
    assert waited_for(f"postgresql://u:p@127.0.0.1:{silent}/d?connect_timeout=2") < 300.0


def settings_of(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """How long the kernel waits for the peer of a connection."""
    with socket.socket(fileno=os.dup(connection.fileno())) as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return {
            "keepalives_idle": one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            "keepalives_interval": one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            "keepalives_count": one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            "tcp_user_timeout": one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        }


@pytest.mark.parametrize("engine_of", [make_engine, lambda url: open_storage(url).engine], ids=["ours", "optuna"])
def test_the_kernel_asks_whether_the_host_of_an_open_connection_is_still_there(postgres_url, engine_of):
    with closing(CuttingProxy(postgres_url)) as proxy:
        named = parse_url(proxy.url).update_query_dict({"keepalives_idle": "60"})
        for url, own in ((proxy.url, {}), (named.render_as_string(hide_password=False), {"keepalives_idle": 60})):
            engine = engine_of(url)
            with engine.connect() as connection:
                driver = connection.connection.driver_connection
                assert isinstance(driver, psycopg.Connection)
                expected = {name: engines.POSTGRESQL_TIMEOUTS[name] for name in settings_of(driver)}
                assert settings_of(driver) == expected | own
            engine.dispose()


def test_a_statement_that_takes_long_is_no_host_that_is_gone(postgres_url, monkeypatch):
    """A turn waits for the lock of another turn for as long as that takes: the kernel of the host answers meanwhile."""
    short = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 1, "tcp_user_timeout": 1000}
    for name, value in short.items():
        monkeypatch.setitem(engines.POSTGRESQL_TIMEOUTS, name, value)
    with closing(CuttingProxy(postgres_url)) as proxy:
        engine = make_engine(proxy.url)
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT pg_sleep(4)"))
        engine.dispose()
