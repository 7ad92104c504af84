"""The server: lists tools, checks arguments, and turns whatever happens into an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.lowlevel import Server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from sqlalchemy.exc import DBAPIError

from automl.mcp_server import changing_tools, ddp_tools, reading_tools
from automl.mcp_server.answers import ToolProblem, text_of
from automl.mcp_server.backend import Backend
from automl.mcp_server.tool import ServedTool
from automl.remote.client import RefusedError, UnreachableError
from automl.service.errors import ConflictError, ForbiddenError, MissingError
from search_spaces.errors import RunError, UserError
from studies.spec.errors import SpecError
from studies.storage.retrying import is_away

TOOLS: Mapping[str, ServedTool] = {
    tool.name: tool for tool in (*changing_tools.TOOLS, *reading_tools.TOOLS, *ddp_tools.TOOLS)
}
INSTRUCTIONS = (
    "Searches hyperparameters of PyTorch models on a budget in dollars, which is never passed. Call launch with a "
    "spec: first without confirm_cost_usd, which checks it and says what it may cost, then with it. Call watch until "
    "it has ended, recommendation for the model to take, and confirm to measure it with fresh seeds. Errors say what "
    "to do next."
)
_MISSING, _CONFLICT, _FORBIDDEN = 404, 409, 403
log = logging.getLogger(__name__)


def make_server(backend_of: Callable[[Any], Backend], *, read_only: bool) -> Server[Any]:
    """Return a server of all tools.

    Args:
        backend_of: Function that returns what a request acts on, by the request's context.
        read_only: Whether tools that start, spend or stop something are refused.
    """

    async def list_tools(_context: Any, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_told(tool) for tool in TOOLS.values() if not (read_only and tool.changes)])

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        try:
            answer, is_error = await _done(params, lambda: backend_of(context), read_only=read_only), False
        except ToolProblem as problem:
            answer, is_error = problem.answer(), True
        return CallToolResult(content=[TextContent(type="text", text=text_of(answer))], is_error=is_error)

    return Server("automl", instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool)


async def _done(
    params: CallToolRequestParams, backend_of: Callable[[], Backend], *, read_only: bool
) -> Mapping[str, Any]:
    """Call a tool, and return its answer.

    Raises:
        ToolProblem: It does nothing, or has failed.
    """
    name = params.name
    tool = TOOLS.get(name)
    if tool is None:
        raise ToolProblem(f"tool: found {name[:100]!r}, allowed: {', '.join(TOOLS)}", "call one of these")
    if read_only and tool.changes:
        cure = "ask a person to do it, or to run `automl mcp` without --read-only"
        raise ToolProblem(f"{name} is refused: this server is read-only", cure)
    arguments = tool.parsed(params.arguments)
    try:
        return await tool.run(backend_of(), arguments)
    except ToolProblem:
        raise
    except (UserError, RunError) as error:
        raise ToolProblem(" ".join(str(error).split()), _next_step(error)) from None
    except Exception as error:
        if isinstance(error, DBAPIError) and is_away(error):
            raise ToolProblem("the store does not answer now", "call again in some seconds") from None
        log.exception("the tool %s has failed", name)
        message = f"a mistake in automl ({type(error).__name__}); its log has more"
        raise ToolProblem(message, "call it with other arguments, and report this") from None


def _next_step(error: Exception) -> str:
    """What helps against an error, by its kind."""
    status = error.status if isinstance(error, RefusedError) else 0
    if isinstance(error, MissingError) or status == _MISSING:
        return "call list_studies for names, and compare_trials for numbers"
    if isinstance(error, ConflictError) or status == _CONFLICT:
        return "call status, and wait or choose another name as it says"
    if isinstance(error, ForbiddenError) or status == _FORBIDDEN:
        return "ask a person whose role allows it"
    if isinstance(error, SpecError):
        return "change that key as it says, and call again"
    if isinstance(error, UnreachableError):
        return "call again in some seconds"
    return "change the arguments as it says, and call again"


def _told(tool: ServedTool) -> Tool:
    hints = ToolAnnotations(read_only_hint=not tool.changes, destructive_hint=False, open_world_hint=False)
    return Tool(name=tool.name, description=tool.description, input_schema=tool.schema(), annotations=hints)
