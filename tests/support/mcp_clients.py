"""Programs that use our tools over the Model Context Protocol, by the SDK's own client."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.support.team_service import TeamService


class Caller:
    """Calls tools, and reads their answers."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a tool, which is an error if it says so."""
        result = await self.client.call_tool(tool, arguments)
        text = result.content[0].text
        answer = json.loads(text)
        assert len(text) <= 20_000
        assert "Traceback" not in text
        assert not result.is_error or set(answer) == {"error", "next"}
        return answer

    async def until_it_ends(self, study: str) -> dict[str, Any]:
        """Watch a job until it has ended."""
        answer: dict[str, Any] = {"seen": None, "ended": False}
        while not answer["ended"]:
            answer = await self("watch", study=study, seconds=20, seen=answer["seen"])
        return answer


@asynccontextmanager
async def over_http(service: TeamService, token: str, *, mode: str = "auto") -> AsyncIterator[Caller]:
    """Call the tools of a service with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=120.0, trust_env=False) as http,
        Client(streamable_http_client(f"{service.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield Caller(client)


@asynccontextmanager
async def over_stdio(folder: Path, *options: str, **environment: str) -> AsyncIterator[Caller]:
    """Call the tools of `automl mcp` in a folder.

    `options` are those before and after the command's name; `environment` is added to that of the tests.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("AUTOML_")}
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "automl", *options], cwd=folder, env=own | environment
    )
    async with Client(parameters) as client:
        yield Caller(client)
