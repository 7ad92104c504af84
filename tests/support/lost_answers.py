"""Databases whose answer to COMMIT is lost after they applied it: in the driver, and on the way from a server."""

import contextlib
import random
import socket
import sqlite3
import threading
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from studies.storage.schema.engine import parse_url


class LossyCommits:
    """Lets an engine's COMMIT be applied, and loses the answer to some of them."""

    def __init__(self, engine: sa.Engine) -> None:
        self.lost, self.share = 0, 0.0
        self._random, self._commit = random.Random(0), engine.dialect.do_commit
        self._error: type[Exception] = (
            sqlite3.OperationalError if engine.dialect.name == "sqlite" else psycopg.OperationalError
        )
        engine.dialect.do_commit = self._commit_and_lose  # type: ignore[method-assign]

    def _commit_and_lose(self, connection: Any) -> None:
        self._commit(connection)
        if self._random.random() < self.share:
            self.lost += 1
            raise self._error("the connection broke after COMMIT")


class CuttingProxy:
    """A TCP server before a PostgreSQL server that cuts a connection instead of handing the answer to COMMIT over."""

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        self._target = next(str(path) for path in Path(str(parsed.query["host"])).glob(".s.PGSQL.*[0-9]"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        through = parsed.set(host="127.0.0.1", port=port).update_query_dict({"sslmode": "disable"})
        query = {name: value for name, value in through.query.items() if name != "host"}
        self.url = through.set(query=query).render_as_string(hide_password=False)
        self.cuts, self.cut = 0, 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                _Connection(self, client, server).start()


class _Connection:
    """Copies bytes both ways until the answer to a COMMIT is to be lost."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._is_to_cut = False

    def start(self) -> None:
        for copy in (self._to_server, self._to_client):
            threading.Thread(target=copy, daemon=True).start()

    def _to_server(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                if b"COMMIT" in data and self._proxy.cuts > 0:
                    self._proxy.cuts -= 1
                    self._is_to_cut = True
                self._server.sendall(data)
        self._close()

    def _to_client(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                if self._is_to_cut:  # this is the answer: the transaction is applied
                    self._proxy.cut += 1
                    break
                self._client.sendall(data)
        self._close()

    def _close(self) -> None:
        for one in (self._client, self._server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
