"""The gate before all routes, a plain ASGI application: checks identity, origin and size of requests.

Once the store has a token, every path outside `OPEN_PATHS`, with mounted applications, needs a token, in the header
`Authorization: Bearer TOKEN` or in the cookie of `/login`. Without tokens in the store, the service listens only on
loopback, and every user of the machine is an admin.
"""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.exc import DBAPIError

from automl.standalone.serving.listening import names_this_machine
from studies.queueing.access_tokens import Identity, identify
from studies.storage.study_store import Store

LOCAL_PROJECT = "local"
"""Project of this machine's users without a token."""


def local_identity() -> Identity:
    """Return the identity of this process's user, who is an admin, since the store belongs to this user."""
    return Identity(user=_local_user(), project=LOCAL_PROJECT, role="admin")


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "local"


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "automl_token"
OPEN_PATHS = frozenset({"/health", "/ready", "/login", "/service.css"})
"""Paths without a token: health checks of load balancers, and the login page."""
OWN_SITE = frozenset({"", "same-origin", "none"})
"""Values of the header Sec-Fetch-Site of requests that no other site caused."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LARGEST_BODY = 2**20
"""Largest body of a request in bytes, except for uploads."""
UPLOADS = "/api/v1/uploads"


class Gate:
    """Forwards allowed requests, with the identity in `scope["state"]["identity"]`."""

    def __init__(self, app: Asgi, store: Store, *, needs_token: bool, host: str) -> None:
        self._app, self._store, self._needs_token, self._host = app, store, needs_token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and forward or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await _refuse(send, 404, "only HTTP connections are served")
            return
        if problem := self._problem(scope):
            await _refuse(send, *problem)
            return
        try:
            identity = await self._identity(scope)
        except DBAPIError:
            await _refuse(send, 503, "the store does not answer now. Try again in a few seconds")
            return
        if identity is None and scope["path"] not in OPEN_PATHS:
            await _ask_for_token(scope, send)
            return
        scope.setdefault("state", {})["identity"] = identity
        await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request with a body of limited size. Upload routes limit their own bodies."""
        if scope["path"].startswith(UPLOADS):
            await self._app(scope, receive, send)
            return
        try:
            body = await _whole_body(receive, LARGEST_BODY)
        except ConnectionAbortedError:  # the client is gone, and an incomplete form must not be used as a complete form
            return
        if body is None:
            await _refuse(send, 413, f"body: more than {LARGEST_BODY} bytes, the most that a request may have")
            return
        await self._app(scope, _again(body, receive), send)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        host = header(scope, "host")
        if not self._needs_token and not names_this_machine(host, self._host):
            return 403, "header Host: found another name, allowed: this machine's own"
        length = header(scope, "content-length")
        is_upload = scope["path"].startswith(UPLOADS)
        if length.isdecimal() and int(length) > LARGEST_BODY and not is_upload:
            return 413, f"body: {length} bytes, but a request may have at most {LARGEST_BODY}"
        if scope["method"] in SAFE_METHODS or header(scope, "authorization"):
            return None
        # Browsers send cookies, and reach loopback, from pages of other sites too.
        origin, site = header(scope, "origin"), header(scope, "sec-fetch-site")
        if site not in OWN_SITE or (origin and _place(origin) != host):
            return 403, "header Origin: found another site, allowed: this service's own pages"
        return None

    async def _identity(self, scope: Scope) -> Identity | None:
        if scope["path"] in OPEN_PATHS:  # these answer even without the store
            return None
        if not self._needs_token:
            return local_identity()
        token = brought_token(scope)
        return None if not token else await asyncio.to_thread(identify, self._store, token)


def brought_token(scope: Scope) -> str:
    """Return a request's token, or an empty text. The header takes precedence over the cookie."""
    given = header(scope, "authorization")
    if given:
        scheme, _, value = given.partition(" ")
        return value.strip() if scheme.lower() == "bearer" else ""
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(header(scope, "cookie"))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def header(scope: Scope, name: str) -> str:
    """Return a header of a request; empty if missing."""
    wanted = name.encode()
    found: bytes = next((value for key, value in scope["headers"] if key == wanted), b"")
    return found.decode("latin-1")


async def _whole_body(receive: Receive, most: int) -> bytes | None:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError
        body += bytes(message.get("body", b""))
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body, then continues with the original."""
    first: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replaying() -> Any:
        return first.pop() if first else await receive()

    return replaying


async def _ask_for_token(scope: Scope, send: Send) -> None:
    """Redirect a browser to the login page. Answer a program that it needs a token."""
    if scope["method"] == "GET" and "text/html" in header(scope, "accept"):
        await _answer(send, 303, b"", [(b"location", b"/login")])
        return
    await _refuse(send, 401, "header Authorization: no valid token. Send Bearer TOKEN")


async def _refuse(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"2"))
    await _answer(send, status, json.dumps({"detail": message}).encode(), headers)


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
