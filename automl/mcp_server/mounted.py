"""The tools at /mcp of the service (streamable HTTP): each call acts as whose token it brings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from automl.mcp_server.server import make_server
from automl.mcp_server.store_backend import StoreBackend
from automl.service.context import studies_for
from automl.service.gate import LARGEST_BODY

PATH = "/mcp"
_METHODS = ["GET", "POST", "DELETE"]


class _Endpoint:
    """Hands requests to the session manager, once the application has started.

    No request keeps a session: each one is answered by itself, with the rights of its own token.
    """

    def __init__(self) -> None:
        self._manager: StreamableHTTPSessionManager | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._manager is None:
            body = json.dumps({"detail": "the service starts; ask again in some seconds"}).encode()
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self._manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests as long as the block runs."""
        server = make_server(lambda context: StoreBackend(studies_for(context.request)), read_only=False)
        manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=True, max_request_body_size=LARGEST_BODY
        )
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None


def mount(app: FastAPI) -> None:
    """Serve the tools at `PATH` of the service's application.

    Args:
        app: Application of the service.
    """
    endpoint, before = _Endpoint(), app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Any) -> AsyncIterator[Any]:
        async with before(started) as state, endpoint.running():
            yield state

    app.add_route(PATH, endpoint, methods=_METHODS, include_in_schema=False)  # type: ignore[arg-type]
    app.router.lifespan_context = lifespan
