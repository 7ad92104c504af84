"""Checks identity, origin and size of every request before any route, as a plain ASGI application.

Once the store has a token, all paths outside `OPEN_PATHS`, also in mounted applications, need a valid token in the
header `Authorization: Bearer TOKEN`, or a session cookie from `/login`. Before the first token, and with `--open`, the
service listens only on loopback, and every user of the machine is an admin.
"""

import asyncio
import getpass
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from fastapi import Response
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import DBAPIError

from automl.service.limits import CALLER, SPEC_CHARS
from automl.service.pages.rendering import refusal
from automl.standalone.serving.listening import names_this_machine
from studies.queueing.access_tokens import Identity, any_made, identify, identify_session
from studies.storage.study_store import Store

LOCAL_PROJECT = "local"  # project of this machine's users without a token
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
COOKIE = "automl_session"
OPEN_PATHS = frozenset({"/health", "/ready", "/login", "/service.css"})
"""Paths without a token: health checks of load balancers, and the login page."""
OWN_SITE = frozenset({"", "same-origin", "none"})  # values of the header Sec-Fetch-Site of requests from no other site
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LARGEST_BODY, API_BODY, OPEN_BODY = 2**20, 4 * SPEC_CHARS, 2**13
"""Largest body in bytes: for MLflow and MCP, for other requests except uploads, and without a token."""
BODY_SECONDS = 30.0  # most seconds for a body to arrive, except for uploads
STORE_SECONDS = 5.0
"""Most seconds to wait for a token's identity. Later requests are refused until the store has answered."""
_STORE_THREADS = 4
_STORE_IS_AWAY = "the store does not answer now. Try again in a few seconds"
UPLOADS = "/api/v1/uploads"


def local_identity() -> Identity:
    """Return this process's user as an admin, because the store belongs to this user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = "local"
    return Identity(user=user, project=LOCAL_PROJECT, role="admin")


class Gate:
    """Forwards allowed requests, with the caller's identity in `scope["state"]["identity"]`."""

    def __init__(self, app: Asgi, store: Store, *, is_open: bool, host: str) -> None:
        self._app, self._store, self._is_open, self._host = app, store, is_open, host
        self._needs_token = False
        self._threads = ThreadPoolExecutor(_STORE_THREADS, "identities")  # routes may hold all other threads
        self._late: Future[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then forward or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        identity, is_open_path = None, scope["path"] in OPEN_PATHS
        if not is_open_path:  # open paths answer even without the store
            try:
                identity = await self._identity(scope)
            except (DBAPIError, TimeoutError):
                await refusal(header(scope, "accept"), 503, _STORE_IS_AWAY)(scope, receive, send)
                return
        has_bearer = identity is not None and identity.token_id is not None and identity.session_id is None
        if problem := self._problem(scope, checks_site=not has_bearer):
            await refusal(header(scope, "accept"), *problem)(scope, receive, send)
        elif identity is None and not is_open_path:
            await _ask_for_token(scope)(scope, receive, send)
        else:
            scope.setdefault("state", {})["identity"] = identity
            CALLER.set("" if identity is None else identity.user)
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and limit the size of its body. Upload routes have their own limits."""
        if scope["path"].startswith(UPLOADS):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _whole_body(receive, _most_bytes(scope))
        except ConnectionAbortedError:  # the client is gone: an incomplete form must not count as complete
            return
        except TimeoutError:
            problem = f"body: incomplete after {BODY_SECONDS:g} seconds"
            await refusal(header(scope, "accept"), 408, problem)(scope, receive, send)
            return
        if body is None:
            problem = f"body: more than {_most_bytes(scope)} bytes, the most that a request may have"
            await refusal(header(scope, "accept"), 413, problem)(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    def _problem(self, scope: Scope, *, checks_site: bool) -> tuple[int, str] | None:
        host = header(scope, "host")
        is_open_path = scope["path"] in OPEN_PATHS  # may be requested before the store was ever read
        if not self._needs_token and not is_open_path and not names_this_machine(host, self._host):
            return 403, "header Host: found another name, allowed: this machine's own"
        length = header(scope, "content-length")
        is_upload, most = scope["path"].startswith(UPLOADS), _most_bytes(scope)
        if length.isdecimal() and int(length) > most and not is_upload:
            return 413, f"body: {length} bytes, but a request may have at most {most}"
        if scope["method"] in SAFE_METHODS or not checks_site:
            return None
        # Browsers send cookies, and reach loopback, from pages of other sites too. They never add a valid token.
        origin, site = header(scope, "origin"), header(scope, "sec-fetch-site")
        if site not in OWN_SITE or (origin and _place(origin) != host):
            return 403, "header Origin: found another site, allowed: this service's own pages"
        return None

    async def _identity(self, scope: Scope) -> Identity | None:
        """Return the caller's identity, or None. Raises TimeoutError if the store does not answer."""
        # A database that hangs would otherwise hold a thread of each request.
        if self._is_open:
            return local_identity()
        if self._late is not None and not self._late.done():
            raise TimeoutError
        reading = self._threads.submit(self._read_identity, header(scope, "authorization"), _cookie(scope))
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(reading))
        except TimeoutError:
            self._late = reading
            raise

    def _read_identity(self, authorization: str, session: str) -> Identity | None:
        if not self._needs_token:
            self._needs_token = any_made(self._store)
            if not self._needs_token:
                return local_identity()
        if authorization:
            scheme, _, token = authorization.partition(" ")
            return identify(self._store, token.strip()) if scheme.lower() == "bearer" else None
        return identify_session(self._store, session) if session else None


def _most_bytes(scope: Scope) -> int:
    if scope["path"] in OPEN_PATHS:  # anybody may send these
        return OPEN_BODY
    return LARGEST_BODY if scope["path"].startswith(("/mlflow/", "/mcp")) else API_BODY


def _cookie(scope: Scope) -> str:
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
    """Return a header of a request, or an empty text."""
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
    """Return an ASGI `receive` that replays a body, then calls the original `receive`."""
    first: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replaying() -> Any:
        return first.pop() if first else await receive()

    return replaying


def _ask_for_token(scope: Scope) -> Response:
    accept = header(scope, "accept")
    if scope["method"] == "GET" and "text/html" in accept:
        return RedirectResponse("/login", status_code=303)
    return refusal(accept, 401, "header Authorization: no valid token. Send Bearer TOKEN")
