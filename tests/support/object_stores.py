"""A real S3 server on this machine, moto's, and a proxy in front of it that fails as stores do."""

import asyncio
import io
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

BUCKET = "checkpoints"
_LISTED = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


@dataclass(kw_only=True)
class Faults:
    """What the proxy does to requests.

    Attributes:
        refuses: Status and code of an error, such as (503, "SlowDown"), by a function of method and path; None lets
            the request pass.
        hidden: Keys that listings do not show, although they are there.
        ghosts: Keys that listings show, although they are gone.
        stalls: Function of method and path; what it is true for gets no answer until the proxy ends.
        changes: Function of path and body that returns what is answered to a GET.
        log: Method and path of each request.
    """

    refuses: Callable[[str, str], tuple[int, str] | None] = lambda _method, _path: None
    stalls: Callable[[str, str], bool] = lambda _method, _path: False
    changes: Callable[[str, bytes], bytes] = lambda _path, body: body
    hidden: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    log: list[tuple[str, str]] = field(default_factory=list)

    def asked(self, method: str, words: str) -> int:
        """Number of requests of a method whose path has these words."""
        return sum(one == method and words in path for one, path in self.log)


class FaultyStore:
    """The S3 server with its proxy, as long as the block runs; the bucket is empty at first."""

    def __init__(self, listening: socket.socket) -> None:
        self.faults = Faults()
        self._listening = listening
        self._stopping = threading.Event()
        self._started = threading.Event()

    def start(self) -> None:
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        self._upstream = f"http://127.0.0.1:{self._moto.get_host_and_port()[1]}"
        self._client = boto3.client("s3", endpoint_url=self._upstream)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(30)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._client.close()
        self._moto.stop()

    def reset(self) -> None:
        """Empty the store and end all faults."""
        import requests

        self.faults = Faults()
        requests.post(f"{self._upstream}/moto-api/reset", timeout=10).raise_for_status()
        self.call("create_bucket")

    def call(self, what: str, **options: Any) -> Any:
        """Speak with the server itself, past the proxy."""
        return getattr(self._client, what)(Bucket=BUCKET, **options)

    def keys(self) -> list[str]:
        return sorted(one["Key"] for one in self.call("list_objects_v2").get("Contents", ()))

    def uploads(self) -> list[str]:
        return sorted(one["Key"] for one in self.call("list_multipart_uploads").get("Uploads", ()))

    def delete_bucket(self) -> None:
        for key in self.keys():
            self.call("delete_object", Key=key)
        self.call("delete_bucket")

    async def _serve(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.SockSite(runner, self._listening.dup()).start()
            self._started.set()
            while not self._stopping.is_set():
                await asyncio.sleep(0.05)
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        method, path = request.method, request.raw_path
        self.faults.log.append((method, path))
        body = await request.read()
        while self.faults.stalls(method, path):
            await asyncio.sleep(0.05)
            if request.transport is None or request.transport.is_closing():
                return _error(499, "ClientIsGone")  # which had not sent all of it, as far as the store knows
        if refusal := self.faults.refuses(method, path):
            return _error(*refusal)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "transfer-encoding"}
        url = URL(self._upstream + path, encoded=True)
        async with self._session.request(
            method, url, headers=headers, data=io.BytesIO(body) if body else None
        ) as answer:
            content = await answer.read()
            if "list-type" in request.query:
                content = self._listing(content)
            elif method == "GET":
                content = self.faults.changes(path, content)
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _PER_HOP}
            if method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, body=content, headers=kept)

    def _listing(self, content: bytes) -> bytes:
        """A listing that lags behind what is there."""

        def shown(entry: re.Match[bytes]) -> bytes:
            return (
                b"" if any(f"<Key>{quote(key)}</Key>".encode() in entry[0] for key in self.faults.hidden) else entry[0]
            )

        content = _LISTED.sub(shown, content)
        ghosts = "".join(
            f"<Contents><Key>{quote(key)}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"0"</ETag><Size>9</Size><StorageClass>STANDARD</StorageClass></Contents>'
            for key in sorted(self.faults.ghosts)
        )
        return content.replace(b"</ListBucketResult>", ghosts.encode() + b"</ListBucketResult>")


_PER_HOP = {"transfer-encoding", "content-length", "connection", "date", "server", "content-encoding"}


def _error(status: int, code: str) -> web.Response:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} for a test</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")


@contextmanager
def faulty_store(listening: socket.socket) -> Iterator[FaultyStore]:
    """Run the server and its proxy."""
    store = FaultyStore(listening)
    store.start()
    try:
        yield store
    finally:
        store.stop()
