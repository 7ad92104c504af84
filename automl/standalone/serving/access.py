"""Access control: checks and times requests, by their token, or without tokens by their host name."""

import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from pydantic import SecretStr

from .listening import names_this_machine
from .metrics import Metrics
from .settings import Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/health"})
"""Paths without a token. The OpenAPI document then hides the model."""
_PATHS = _OPEN_PATHS | {"/metrics", "/predict", "/predict/batch"}
_KNOWN_HOSTS = 16


def first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the first value of each header, by lower-case name."""
    return dict(reversed(scope["headers"]))


def brings_token(headers: Mapping[bytes, bytes], token: SecretStr | None) -> bool:
    """Return whether a request has the token, compared in constant time. True without a token."""
    if token is None:
        return True
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    is_bearer = scheme.lower() == b"bearer"
    return hmac.compare_digest(value.strip(), token.get_secret_value().encode()) and is_bearer


class Gate:
    """ASGI application that checks and records requests to another application."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], settings: Settings, metrics: Metrics):
        self._app, self._token, self._metrics = app, settings.token, metrics
        is_own = lru_cache(_KNOWN_HOSTS)(lambda host: names_this_machine(host.decode("latin-1"), settings.host))
        self._knows_host = is_own if settings.is_open else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then forward or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if (refused := self._refused(scope)) is None:
                await self._app(scope, receive, noting)
            else:
                await _refuse(*refused, noting)
        finally:
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self._metrics.answered(path, status, time.perf_counter() - started)

    def _refused(self, scope: Scope) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        headers = first_headers(scope)
        if self._knows_host is not None and not self._knows_host(headers.get(b"host", b"")):
            # DNS rebinding: a web page's own name can resolve to 127.0.0.1, and the page then reads answers here.
            return 403, "header Host: found another name, allowed: this machine's own, or use a token", []
        if self._knows_host is not None and not _is_same_site(headers):
            return 403, "header Origin: found another site, allowed: this server's own pages, or use a token", []
        if scope["path"] not in _OPEN_PATHS and not brings_token(headers, self._token):
            said = "header Authorization: no valid token. Send Bearer TOKEN"
            return 401, said, [(b"www-authenticate", b"Bearer")]
        return None


def _is_same_site(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request is from no other site's page. Browsers name the page's site in a header."""
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == headers.get(b"host")


async def _refuse(status: int, detail: str, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
