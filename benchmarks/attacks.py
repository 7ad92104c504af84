"""Hostile clients against real processes: identities, work before a limit, slow and greedy clients, and the end.

    python benchmarks/attacks.py --json
    python benchmarks/attacks.py --doors access,work --connections 300
    python benchmarks/attacks.py --doors '' --server 'uvicorn --port {port} attacked_app:app'

starts `automl serve`, `automl dashboard` and a model server in processes of their own, and attacks them. It prints what
did not hold, the number of requests, the 99th percentile of `/health`, and the growth of memory. Exit code 1 if
anything did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import itertools
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import sqlalchemy as sa

from studies.queueing import access_tokens
from studies.storage.schema import tables as t
from studies.storage.study_store import Store

SLOWEST_SECONDS = 1.0
"""Largest 99th percentile of `/health` under attack."""
END_SECONDS = 10.0
PROBE_SECONDS = 0.05
BOUNCE = "http://evil.example"
SPEC = {"study": "a", "task": "digits", "budget": {"trials": 1}}


@dataclass
class Found:
    """What the attacks found.

    Attributes:
        requests: Number of hostile requests and connections.
        broken: What did not hold.
        figures: Figures by name.
    """

    requests: int = 0
    broken: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def check(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.broken.append(what)


@dataclass
class Target:
    """A process under attack."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    found: Found
    has_workers: bool = False

    def ask(
        self, method: str, path: str, body: bytes = b"", *, seconds: float = 60.0, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer; status 0 without one."""
        self.found.requests += 1
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(
                method, path, body or None, {name.replace("_", "-"): one for name, one in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, {name.lower(): one for name, one in answer.getheaders()}, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, {}, b""
        finally:
            connection.close()

    def raw(self, data: bytes, seconds: float = 10.0) -> bytes:
        """Send bytes, and return what comes within some seconds."""
        self.found.requests += 1
        got = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as one:
            one.sendall(data)
            while part := one.recv(65_536):
                got += part
        return got

    @property
    def rss(self) -> int:
        """Resident bytes of the process and its workers. Programs of the service have limits of their own."""
        main = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (main, *(main.children() if self.has_workers else ())))

    @contextlib.contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Ask `/health` on new connections meanwhile, and note its 99th percentile and the growth of memory."""
        seconds: list[float] = []
        answers: Counter[int] = Counter()
        before, most, over = self.rss, self.rss, threading.Event()

        def probe() -> None:
            nonlocal most
            while not over.wait(PROBE_SECONDS):
                began = time.perf_counter()
                status = self.ask("GET", "/health", seconds=30.0)[0]
                self.found.requests -= 1
                answers[status] += 1
                seconds.append(time.perf_counter() - began if status == 200 else 30.0)
                most = max(most, self.rss)

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        slow = sorted(seconds)[int(0.99 * (len(seconds) - 1))] if seconds else 30.0
        self.found.figures |= {
            f"{name}: health_p99_s": round(slow, 3),
            f"{name}: memory_growth": round(most / before, 2),
        }
        said = f"{name}: the 99th percentile of /health is {slow:.2f} s; number of answers by status: {dict(answers)}"
        self.found.check(slow < SLOWEST_SECONDS, said)
        self.found.check(most < 2 * before, f"{name}: memory grew from {before >> 20} to {most >> 20} MiB")


@contextlib.contextmanager
def started(folder: Path, found: Found, *command: str, said: str, files: int | None = None) -> Iterator[Target]:
    """Run a program of this project until the end of the block. `said` finds its port in what it prints."""
    name, log = command[1] if command[0] == "automl" else command[0], folder / f"{time.monotonic_ns()}.log"
    limit = None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            stdout=stream,
            stderr=stream,
            preexec_fn=limit,  # noqa: PLW1509 - no other thread runs yet
        )
    target, pattern, end = Target(process, 0, log, found), re.compile(said), time.monotonic() + 120.0
    try:
        while (port := pattern.search(log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text()[-2000:])
            time.sleep(0.05)
        target.port = int(port[1])
        yield target
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60.0)
        if process.poll() is None:
            process.kill()
            process.wait()
        text = log.read_text(errors="replace")
        found.check("Traceback" not in text, f"{name}: a traceback is in the log: {_last_line(text)}")
        found.check(len(text) < 2**20, f"{name}: the log has {len(text)} bytes")


def _last_line(text: str) -> str:
    return next((line[-200:] for line in reversed(text.splitlines()) if "Error" in line), "")


def service(folder: Path, found: Found, *options: str, **limits: Any) -> Any:
    return started(folder, found, "automl", "serve", "--port", "0", "--store", f"sqlite:///{folder}/automl.db",
                   *options, said=r"automl service: http://[^ ]+:(\d+)", **limits)  # fmt: skip


def bearer(token: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {token}"}


def token_of(store: Store, role: access_tokens.Role, project: str = "red") -> str:
    return access_tokens.create(store, name="test", user=f"{role}-user", project=project, role=role, days=1.0)[0]


# Who is let in.


def access(folder: Path, found: Found, _connections: int) -> None:
    """Ask without a token, in somebody's name, and with a cookie that has ended."""
    store = Store(f"sqlite:///{folder}/automl.db")
    with service(folder, found) as target:
        found.check(target.ask("GET", "/api/v1/me")[0] == 200, "open mode: no answer before the first token")
        for origin in (BOUNCE, "null", "http://localhost.evil.example"):
            for authorization in ("x", "Basic YTpi", "Bearer x", "Bearer", "bearer automl_x", "Digest a=b"):
                for path in ("/api/v1/studies", "/submit", "/tokens", "/logout"):
                    asked: dict[str, Any] = {"Authorization": authorization, "Origin": origin}
                    status = target.ask("POST", path, json.dumps({"spec": SPEC}).encode(), **asked)[0]
                    found.check(status == 403, f"CSRF: {status} for POST {path} with {asked}")
        admin = token_of(store, "admin")
        found.check(target.ask("GET", "/api/v1/me")[0] == 401, "open mode: it stays after the first token was made")
        _sessions(target, admin)
        _last_admin(target, store, admin)
        _answers(target, admin)
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.tokens).values(expires_at=1.0))
    with service(folder, found) as target:
        found.check(target.ask("GET", "/api/v1/me")[0] == 401, "open mode: everybody is an admin once all tokens ended")
    store.close()
    _dashboard(folder, found)


def _sessions(target: Target, admin: str) -> None:
    found = target.found
    _, headers, _ = target.ask("POST", "/login", urlencode({"token": admin}).encode())
    cookie = headers.get("set-cookie", "").partition(";")[0]
    found.check(admin not in headers.get("set-cookie", ""), "session: the cookie is the token")
    found.check(target.ask("GET", "/api/v1/me", Cookie=cookie)[0] == 200, "session: the cookie is refused")
    for origin in (BOUNCE, "null"):
        others: list[dict[str, Any]] = [{}, {"Authorization": "x"}, {"Authorization": "Basic YTpi"}]
        for more in others:
            status = target.ask("POST", "/logout", b"", Cookie=cookie, Origin=origin, **more)[0]
            found.check(status in {401, 403}, f"CSRF: {status} for a logout by {origin} with {more}")
    target.ask("POST", "/logout", b"", Cookie=cookie)
    found.check(target.ask("GET", "/api/v1/me", Cookie=cookie)[0] == 401, "session: the cookie works after the logout")
    name = cookie.partition("=")[0]
    for wrong in ("", "x", admin, "x" * 4000, "%00", '"'):
        status = target.ask("GET", "/api/v1/me", Cookie=f"{name}={wrong}")[0]
        found.check(status == 401, f"session: {status} for the cookie {wrong[:20]!r}")


def _last_admin(target: Target, store: Store, admin: str) -> None:
    only = next(line.id for line in access_tokens.listed(store) if line.role == "admin")
    status = target.ask("DELETE", f"/api/v1/tokens/{only}", **bearer(admin))[0]
    target.found.check(status == 409, f"tokens: {status} for revoking the last admin's token")


def _answers(target: Target, admin: str) -> None:
    found = target.found
    large = {"Content_Length": str(2**21), **bearer(admin)}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/api/v1/me", {}), ("GET", "/nothing", bearer(admin)), ("POST", "/x", large),
        ("POST", "/logout", {"Origin": BOUNCE}), ("GET", "/login", {}), ("GET", "/health", {}),
    ]  # fmt: skip
    for method, path, more in asked:
        _, headers, _ = target.ask(method, path, b"x" if method == "POST" else b"", **more)
        found.check(headers.get("x-content-type-options") == "nosniff", f"headers: {method} {path} lacks nosniff")
    status, headers, _ = target.ask("POST", "/logout", b"", Origin=BOUNCE, Accept="text/html")
    is_page = headers.get("content-type", "").startswith("text/html")
    found.check(status in {401, 403} and is_page, "pages: a browser gets JSON for a refusal")
    twice = target.raw(b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n")
    found.check(twice.startswith(b"HTTP/1.1 400 "), f"two Host headers: {twice[:20]!r}")
    for usd in (True, False, "NaN", [1], {"a": 1}, 1e400, -1, "1e999"):
        body = json.dumps({"usd": usd}).encode()
        for method, path in (("PUT", "/api/v1/accounts/user/ann"), ("POST", "/api/v1/studies/a/confirm")):
            status = target.ask(method, path, body, Content_Type="application/json", **bearer(admin))[0]
            found.check(status == 422, f"money: {status} for {method} {path} with {body.decode()}")


def _dashboard(folder: Path, found: Found) -> None:
    command = ("automl", "dashboard", "--store", f"sqlite:///{folder}/automl.db", "--port", str(_free_port()))
    with started(folder, found, *command, said=r"http://127\.0\.0\.1:(\d+)/") as target:
        found.check(target.ask("GET", "/")[0] == 200, "dashboard: no page")
        for method in ("DELETE", "POST", "PUT", "PATCH"):
            for path in ("/api/studies", "/api/studies/1", "/api/studies/1/note", "/api/trials/1/user-attrs"):
                status = target.ask(method, path, b"{}", Content_Type="application/json")[0]
                found.check(status == 403, f"dashboard: {status} for {method} {path}")
        for origin in (BOUNCE, "null"):
            found.check(target.ask("GET", "/api/studies", Origin=origin)[0] == 403, f"dashboard: it answers {origin}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


# Work before a limit.


def work(folder: Path, found: Found, _connections: int) -> None:
    """Send specs, JSON and uploads that cost far more than their bytes."""
    store = Store(f"sqlite:///{folder}/automl.db")
    token, viewer = token_of(store, "member"), token_of(store, "viewer")
    uploads = ("--uploads", str(folder / "uploads"), "--uploads-mib", "8")
    with service(folder, found, *uploads) as target:
        slowest = 0.0
        found.check(
            target.ask("POST", "/api/v1/uploads?name=a.csv.gz", gzip.compress(b"a"), **bearer(token))[0] == 201,
            "work: a plain upload is refused",
        )
        with target.watched("work"):
            for name, path, body in _costly_bodies():
                for who in (viewer, token):
                    began = time.perf_counter()
                    status = target.ask("POST", path, body, Content_Type="application/json", **bearer(who))[0]
                    took = time.perf_counter() - began
                    slowest = max(slowest, took)
                    found.check(400 <= status < 500, f"work: {status} for {name}")
                    found.check(took < 5.0, f"work: {name} took {took:.1f} s")
            for name, upload in _bombs(folder).items():
                status = target.ask("POST", f"/api/v1/uploads?name={name}", upload, **bearer(token))[0]
                found.check(status in {413, 422}, f"work: {status} for the upload {name}, {len(upload) >> 10} KiB")
            _check_many(target, token_of(store, "admin"), token)
        found.figures["work: slowest_s"] = round(slowest, 2)
    store.close()


def _costly_bodies() -> Iterator[tuple[str, str, bytes]]:
    many = {f"key{number}": 1 for number in range(70_000)}
    deep = "[" * 5_000 + "]" * 5_000
    yamls = {
        "many YAML keys": "\n".join(f"k{number}: 1" for number in range(90_000)),
        "a YAML list": "a: [" + "x, " * 300_000 + "]",
        "YAML merges": "a: &a {x: 1}\n" + "\n".join(f"k{n}: {{<<: *a}}" for n in range(40_000)),
        "deep YAML": "a: " + "[" * 30_000 + "]" * 30_000,
        "deep block YAML": "\n".join(" " * n + "a:" for n in range(1000)),
        "YAML aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
            f"{b}: &{b} [{','.join(['*' + a] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)),
        "YAML complex keys": "? " * 20_000 + "a",
        "YAML scalars": "a: " + "'" + "x\n\n" * 200_000 + "'",
        "YAML anchors": "\n".join(f"k{n}: &a{n} x" for n in range(50_000)),
        "small YAML keys": "\n".join(f"k{number}: 1" for number in range(6_000)),
        "small YAML list": "a: [" + "x, " * 21_000 + "]",
    }  # fmt: skip
    for path in ("/api/v1/studies/check", "/api/v1/studies"):
        yield "unknown keys", path, json.dumps({"spec": SPEC | many}).encode()
        yield "unknown keys of a section", path, json.dumps({"spec": SPEC | {"budget": many}}).encode()
        yield "unknown parameters", path, json.dumps({"spec": SPEC | {"space": many}}).encode()
        yield "wrong objectives", path, json.dumps({"spec": SPEC | {"objectives": [{"x": 1}] * 50_000}}).encode()
        for name, text in yamls.items():
            yield name, path, json.dumps({"spec": text}).encode()
        yield "deep JSON", path, f'{{"spec": {{"study": {deep}}}}}'.encode()
        yield "JSON numbers", path, b'{"spec": {"study": ' + b"9" * 100_000 + b"}}"
        yield "keys of the body", path, json.dumps({"spec": SPEC} | many).encode()
    yield "deep JSON", "/api/v1/studies/a/enqueue", f'{{"params": {{"a": {deep}}}}}'.encode()
    yield "overrides", "/api/v1/studies/a/resume", json.dumps({"overrides": ["a" * 40_000] * 20}).encode()


def _bombs(folder: Path) -> dict[str, bytes]:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"a": pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), ["x" * 10_000])})
    parquet.write_table(table, folder / "bomb.parquet")
    zeros = pa.table({f"c{number}": pa.array([0.0] * 2_000_000) for number in range(20)})
    parquet.write_table(zeros, folder / "zeros.parquet", compression="zstd")
    return {
        "bomb.csv.gz": gzip.compress(b"a,b\n" + b"1,2\n" * 50_000_000, 9),
        "bomb.gz": gzip.compress(bytes(2**28), 9),
        "bomb.parquet": (folder / "bomb.parquet").read_bytes(),
        "zeros.parquet": (folder / "zeros.parquet").read_bytes(),
        "no.parquet": b"PAR1" + b"\xff" * 1000 + b"\xff\x00\x00\x00PAR1",
        "no.csv.gz": b"\x1f\x8b\x08" + b"\xff" * 1000,
    }


def _check_many(target: Target, many: str, token: str) -> None:
    """Send many checks with one token: another token's check still gets a turn."""
    body, done = json.dumps({"spec": SPEC}).encode(), list[int]()
    asked: dict[str, Any] = {"Content_Type": "application/json"}

    def ask() -> None:
        done.append(target.ask("POST", "/api/v1/studies/check", body, **asked, **bearer(many))[0])

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    status = target.ask("POST", "/api/v1/studies/check", body, **asked, **bearer(token))[0]
    for thread in threads:
        thread.join()
    target.found.check(status == 200, f"work: {status} for a check while another token sends many")
    target.found.check(set(done) <= {200, 429}, f"work: statuses {sorted(set(done))} for many checks")


# Clients.


def clients(folder: Path, found: Found, connections: int) -> None:
    """Open many connections that send slowly, half, too much or nothing, and read nothing."""
    store = Store(f"sqlite:///{folder}/automl.db")
    token = token_of(store, "member")
    with service(folder, found) as target:
        hostile_clients(target, "service", connections, token)
    with service(folder, found, files=1024) as target, target.watched("service with 1024 files"):
        _half_requests(target, 1100, 3.0)
    store.close()


def hostile_clients(target: Target, name: str, connections: int, token: str = "") -> None:
    """Attack a server, whose memory has to come back."""
    before = target.rss
    auth = f"Authorization: Bearer {token}\r\n".encode() if token else b""
    large = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n" + auth + b"\r\n"
    with target.watched(f"{name}: half requests"):
        _half_requests(target, connections, 3.0)
    with target.watched(f"{name}: half bodies"):
        _half_bodies(target, min(connections, 500), 3.0)
    with target.watched(f"{name}: pipelined requests"):
        _pipelined(target, large, min(connections // 10, 50), 5.0)
    with target.watched(f"{name}: endless heads"):
        _endless_heads(target, min(connections // 10, 50), 5.0)
    with target.watched(f"{name}: garbage"):
        end = time.monotonic() + 3.0  # a percentile needs more answers than come while 100 requests are refused
        for number in itertools.count():
            if number >= 100 and time.monotonic() > end:
                break
            target.raw(bytes((number * k) % 256 for k in range(1, 400)) + b"\r\n\r\n", 2.0)
    _times_out(target, name, large)
    _keeps_the_body(target, name)
    time.sleep(2.0)
    growth = target.rss / before
    target.found.figures[f"{name}: memory_after"] = round(growth, 2)
    target.found.check(growth < 1.5, f"{name}: memory stays {growth:.1f} times as large")


def _many(target: Target, count: int, data: bytes) -> list[socket.socket]:
    opened = []
    for _ in range(count):
        target.found.requests += 1
        one = socket.socket()
        one.settimeout(5.0)
        with contextlib.suppress(OSError):
            one.connect(("127.0.0.1", target.port))
            one.sendall(data)
        opened.append(one)
    return opened


def _closed(opened: list[socket.socket]) -> None:
    for one in opened:
        one.close()


def _half_requests(target: Target, count: int, seconds: float) -> None:
    opened = _many(target, count, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for one in opened:
            with contextlib.suppress(OSError):
                one.send(b"x")
        time.sleep(0.2)
    _closed(opened)


def _half_bodies(target: Target, count: int, seconds: float) -> None:
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    opened = _many(target, count, head + b"x" * 50_000)
    time.sleep(seconds)
    _closed(opened)


def _pipelined(target: Target, request: bytes, count: int, seconds: float) -> None:
    opened = _many(target, count, b"")
    many, end = request * (2**18 // len(request)), time.monotonic() + seconds
    for one in opened:
        one.setblocking(False)
    while time.monotonic() < end:
        for one in opened:
            with contextlib.suppress(OSError):
                one.send(many)
        time.sleep(0.01)
    _closed(opened)


def _endless_heads(target: Target, count: int, seconds: float) -> None:
    opened, end = _many(target, count, b"GET / HTTP/1.1\r\n"), time.monotonic() + seconds
    for one in opened:
        one.setblocking(False)
    while time.monotonic() < end:
        for one in opened:
            with contextlib.suppress(OSError):
                one.send(b"X: " + b"y" * 4000 + b"\r\n")
        time.sleep(0.01)
    _closed(opened)


def _times_out(target: Target, name: str, large: bytes) -> None:
    """Half a head, and a reader that reads nothing, are closed by the server in the end."""
    half = _many(target, 1, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")[0]
    mute = socket.socket()
    mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    mute.settimeout(60.0)
    mute.connect(("127.0.0.1", target.port))
    mute.setblocking(False)
    for _ in range(200):
        with contextlib.suppress(OSError):
            mute.send(large * 50)
        time.sleep(0.01)
    end, open_ones = time.monotonic() + 60.0, {half.getsockname()[1], mute.getsockname()[1]}
    while open_ones and time.monotonic() < end:
        kept = {one.raddr.port for one in _connections(target) if one.raddr}
        open_ones &= kept
        with contextlib.suppress(OSError):
            half.send(b"X: y\r\n")
        time.sleep(0.5)
    target.found.check(half.getsockname()[1] not in open_ones, f"{name}: half a head is kept for 60 s")
    target.found.check(mute.getsockname()[1] not in open_ones, f"{name}: a reader that reads nothing is kept for 60 s")
    _closed([half, mute])


def _connections(target: Target) -> list[Any]:
    processes = [psutil.Process(target.process.pid), *psutil.Process(target.process.pid).children(recursive=True)]
    return [one for process in processes for one in process.net_connections("tcp")]


def _keeps_the_body(target: Target, name: str) -> None:
    """Java's client and `curl --http2` offer h2c beside a request of HTTP/1.1."""
    body = b"token=x"
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    for path, expected in ((b"/login", b" 401 "), (b"/predict", b" 422 ")):
        head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
        plain, offered = (
            target.raw(head + b"Connection: close\r\n\r\n" + body),
            target.raw(head + offer + b"\r\n" + body),
        )
        if expected in plain[:40]:
            target.found.check(expected in offered[:40], f"{name}: {offered[:40]!r} for an offer of h2c with a body")


def models(folder: Path, found: Found, connections: int, model: Path) -> None:
    """Attack a model server."""
    command = ("automl", "serve-model", str(model), "--port", "0", "--workers", "2")
    with started(folder, found, *command, said=r"at http://[^ ]+:(\d+); /docs") as target:
        target.has_workers = True
        hostile_clients(target, "model server", connections)
        opened = _many(target, 60, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1.0)
        workers = psutil.Process(target.process.pid).children()
        counts = [len([one for one in each.net_connections("tcp") if one.status == "ESTABLISHED"]) for each in workers]
        found.figures["model server: fewest_of_60_connections"] = min(counts)
        found.check(min(counts) >= 15, f"model server: workers have {counts} of 60 connections")
        _closed(opened)


def other_server(folder: Path, found: Found, connections: int, command: str) -> None:
    """Attack a server of `attacked_app`: a module and its arguments, with {port} for a free port."""
    words = shlex.split(command.format(port=_free_port()))
    with started(folder, found, *words, said=r"://127\.0\.0\.1:(\d+)") as target:
        target.has_workers = True
        end = time.monotonic() + 120.0  # some say that they listen before their workers do
        while target.ask("GET", "/health")[0] != 200:
            if time.monotonic() > end:
                raise RuntimeError(target.log.read_text()[-2000:])
            time.sleep(0.5)
        hostile_clients(target, words[0], connections)


# The end.

_SLOW_TASK = """
import time
from collections import Counter

time.sleep(60)
"""


def ends(folder: Path, found: Found, _connections: int) -> None:
    """End the service while a check of slow code runs, and a client reads nothing."""
    store = Store(f"sqlite:///{folder}/automl.db")
    token = token_of(store, "member")
    code = folder / "code"
    code.mkdir()
    (code / "slow.py").write_text(_SLOW_TASK)
    with service(folder, found, "--code", str(code)) as target:
        body = json.dumps({"spec": SPEC | {"task": "slow:Task"}, "code": "code"}).encode()
        asked = {"Content_Type": "application/json", **bearer(token)}
        threads = [threading.Thread(target=target.ask, args=("POST", "/api/v1/studies/check", body), kwargs=asked)
                   for _ in range(4)]  # fmt: skip
        for thread in threads:
            thread.start()
        half = _many(target, 20, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        time.sleep(3.0)
        children = psutil.Process(target.process.pid).children(recursive=True)
        began = time.monotonic()
        target.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            target.process.wait(130.0)
        took = time.monotonic() - began
        found.figures["ends: seconds"] = round(took, 1)
        found.check(took < END_SECONDS + 2.0, f"ends: {took:.0f} s after SIGTERM")
        found.check(target.process.poll() == 0, f"ends: exit code {target.process.poll()}")
        found.check(not psutil.wait_procs(children, timeout=3.0)[1], "ends: a program of the service lives on")
        _closed(half)
        for thread in threads:
            thread.join()
    store.close()


DOORS: dict[str, Callable[[Path, Found, int], None]] = {
    "access": access, "work": work, "clients": clients, "ends": ends,
}  # fmt: skip


def attack(doors: list[str], connections: int, model: Path | None, server: str = "") -> Found:
    """Attack each door, the model server if there is a model, and the server of a command."""
    found = Found()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * connections + 1024)), hard))
    for name in doors:
        with tempfile.TemporaryDirectory() as folder:
            DOORS[name](Path(folder), found, connections)
    if model is not None:
        with tempfile.TemporaryDirectory() as folder:
            models(Path(folder), found, connections, model)
    if server:
        with tempfile.TemporaryDirectory() as folder:
            other_server(Path(folder), found, connections, server)
    return found


def main() -> int:
    """Print what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doors", default=",".join(DOORS), help="Parts to attack, separated by commas.")
    parser.add_argument("--connections", type=int, default=10_000, help="Number of hostile connections.")
    parser.add_argument("--model", type=Path, help="Exported model, whose server is attacked as well.")
    parser.add_argument("--server", default="", help="Module and arguments of another server; see attacked_app.py.")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.pop("AUTOML_STORE", None)
    found = attack([name for name in given.doors.split(",") if name], given.connections, given.model, given.server)
    if given.json:
        print(json.dumps({"requests": found.requests, "broken": found.broken, "figures": found.figures}))
    else:
        print(f"{found.requests} hostile requests and connections")
        print(*(f"{name} {figure:g}" for name, figure in found.figures.items()), sep="\n")
        print(*(f"did not hold: {one}" for one in found.broken), sep="\n")
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
