"""Who may ask: checks the token, or that the request comes from this machine's own names, and times each request."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from pydantic import SecretStr

from .loopback import names_this_machine
from .metrics import Metrics
from .replies import Reply, ReplyHeaders
from .settings import Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Mapping[bytes, bytes]
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/health"})
"""What is answered without the token; the OpenAPI document then tells nothing of the model."""
_PATHS = frozenset({"/", "/docs", "/openapi.json", "/health", "/metrics", "/predict", "/predict/batch"})
_KNOWN_HOSTS = 16


def first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by their names in small letters; of those that come twice the first one."""
    return dict(reversed(scope["headers"]))


def brings_token(headers: Headers, token: SecretStr | None) -> bool:
    """Whether a request has the token, compared in constant time; every request has, where none is needed."""
    if token is None:
        return True
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
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
        is_own = lru_cache(_KNOWN_HOSTS)(lambda host: names_this_machine(host.decode("latin-1"), settings.host))
        self._knows_host = is_own if settings.is_open else None

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
            refused = self.refused(scope["path"], first_headers(scope))
            if refused is None:
                await self._app(scope, receive, noting)
            else:
                await _send(refused, noting)
        finally:
            self.answered(scope["path"], status, time.perf_counter() - started)

    def refused(self, path: str, headers: Headers) -> Reply | None:
        """Return what a request gets that may not be answered; None for one that may."""
        if self._knows_host is not None and not self._knows_host(headers.get(b"host", b"")):
            # A web page can have its own name resolved to 127.0.0.1, and then read answers here ("DNS rebinding").
            return _refusal(403, "header Host: found another name, allowed: this machine's own, or use a token")
        if path not in OPEN_PATHS and not brings_token(headers, self._token):
            said = "header Authorization: found no valid token, allowed: Bearer TOKEN"
            return _refusal(401, said, (("www-authenticate", "Bearer"),))
        return None

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Note a request that was answered."""
        self._metrics.answered(path if path in _PATHS else "other", status, seconds)


def _refusal(status: int, message: str, headers: ReplyHeaders = ()) -> Reply:
    return Reply(status, json.dumps({"detail": message}).encode(), headers)


async def _send(reply: Reply, send: Send) -> None:
    headers = (("content-type", "application/json"), ("content-length", str(len(reply.body))), *reply.headers)
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": encoded})
    await send({"type": "http.response.body", "body": reply.body})
