"""Who may ask: checks the token, or that the request comes from this machine's own names, and times each request."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pydantic import SecretStr

from .metrics import Metrics
from .settings import LOOPBACK_NAMES, Settings, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/health"})
"""What is answered without the token; the OpenAPI document then tells nothing of the model."""
_PATHS = frozenset({"/", "/docs", "/openapi.json", "/health", "/metrics", "/predict", "/predict/batch"})


def brings_token(scope: Scope, token: SecretStr | None) -> bool:
    """Whether a request has the token, compared in constant time; every request has, where none is needed."""
    if token is None:
        return True
    brought = _header(scope, b"authorization")
    scheme, _, value = brought.partition(b" ")
    is_bearer = scheme.lower() == b"bearer"
    return hmac.compare_digest(value.strip(), token.get_secret_value().encode()) and is_bearer


class Gate:
    """Lets requests through to the application.

    Args:
        app: The application.
        settings: With the token.
        metrics: Told of each request.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], settings: Settings, metrics: Metrics):
        self._app, self._token, self._metrics = app, settings.token, metrics
        self._names = LOOPBACK_NAMES | {settings.host} if settings.is_open else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        status = 500

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        finally:
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self._metrics.answered(path, status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._knows_host(scope):
            # A web page can have its own name resolved to 127.0.0.1, and then read answers here ("DNS rebinding").
            await _refuse(send, 403, "header Host: found another name, allowed: this machine's own, or use a token")
        elif scope["path"] not in OPEN_PATHS and not brings_token(scope, self._token):
            await _refuse(send, 401, "header Authorization: found no valid token, allowed: Bearer TOKEN")
        else:
            await self._app(scope, receive, send)

    def _knows_host(self, scope: Scope) -> bool:
        if self._names is None:
            return True
        name = _header(scope, b"host").decode("latin-1").lower()
        before, colon, port = name.rpartition(":")
        bare = (before if colon and port.isdecimal() else name).strip("[]")
        return not bare or bare in self._names or is_loopback(bare)


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"detail": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
