"""Serves the agents' tools at /mcp of the service (streamable HTTP), with the rights of each call's token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from mcp.server.transport_security import TransportSecuritySettings

from automl.backend import QueueBackend
from automl.mcp_server.server import make_server
from automl.service.http.context import studies_for
from automl.service.http.gate import LARGEST_BODY

PATH = "/mcp"


def mount(app: FastAPI) -> None:
    """Serve the tools at `PATH`, without sessions. `Gate` has checked token, host and origin."""
    server = make_server(lambda context: QueueBackend(studies_for(context.request)), read_only=False)
    http = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, max_request_body_size=LARGEST_BODY,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )  # fmt: skip
    app.router.routes.extend(http.routes)
    before = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Any) -> AsyncIterator[Any]:
        async with before(started) as state, server.session_manager.run():
            yield state

    app.router.lifespan_context = lifespan
