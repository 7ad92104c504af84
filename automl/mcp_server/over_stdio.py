"""The tools over stdin and stdout, for a store of this machine or for a service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
from mcp.server.stdio import stdio_server

from automl.mcp_server.backend import Backend
from automl.mcp_server.server import make_server
from automl.mcp_server.service_backend import ServiceBackend
from automl.mcp_server.store_backend import StoreBackend
from automl.remote.client import ServiceClient
from automl.service.local_identity import local_identity
from automl.service.policy import Policy
from automl.service.team_studies import TeamStudies
from studies.storage.store import Store


def serve_store(
    store: Store, code: Mapping[str, Path], *, artifacts: str, usd_per_slot_hour: float | None, read_only: bool
) -> None:
    """Serve the studies of a store until stdin ends.

    Args:
        store: The store.
        code: Folders whose tasks may run, and from which built-in tasks may read, by name.
        artifacts: Folder or URL of checkpoints and reports.
        usd_per_slot_hour: Price of a slot in dollars an hour; None takes the list price.
        read_only: Whether tools that change something are refused.
    """
    policy = Policy(code_folders=code, artifacts=artifacts, usd_per_slot_hour=usd_per_slot_hour)
    _serve(StoreBackend(TeamStudies(store, policy, local_identity())), read_only=read_only)


def serve_service(client: ServiceClient, *, read_only: bool) -> None:
    """Serve the studies of a service until stdin ends.

    Args:
        client: Client of the service.
        read_only: Whether tools that change something are refused.
    """
    _serve(ServiceBackend(client), read_only=read_only)


def _serve(backend: Backend, *, read_only: bool) -> None:
    server = make_server(lambda _context: backend, read_only=read_only)

    async def speak() -> None:
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())

    anyio.run(speak)
