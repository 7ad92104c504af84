"""The MCP server: lists tools, checks arguments, answers with results or errors."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ConfigDict, ValidationError
from sqlalchemy.exc import DBAPIError

from automl.mcp_server import ddp_tools, study_tools
from automl.mcp_server.tool import Backend, ToolProblem, ToolServer, text_of
from automl.remote.client import RefusedError, UnreachableError
from automl.service.http_errors import ConflictError, ForbiddenError, MissingError
from search_spaces.messages import RunError, UserError
from studies.spec.spec_errors import SpecError
from studies.storage.writing.retrying import is_away

INSTRUCTIONS = (
    "Searches hyperparameters of PyTorch models on a budget in dollars, which is never exceeded. Call launch with a "
    "spec: first without confirm_cost_usd, which checks it and returns the possible cost, then with it. Call watch "
    "until the study has ended, recommendation for the model to take, and confirm to measure it with fresh seeds. "
    "Errors say what to do next."
)
_MISSING, _CONFLICT, _FORBIDDEN = 404, 409, 403
log = logging.getLogger(__name__)


def _tool(function: Callable[..., Any], *, changes: bool) -> Tool:
    """Make a tool from a function. It refuses unknown arguments and wrong types."""
    hints = ToolAnnotations(read_only_hint=not changes, destructive_hint=False, open_world_hint=False)
    tool = Tool.from_function(
        function, description=" ".join(str(function.__doc__).split()), annotations=hints, structured_output=False
    )
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: type[ArgModelBase] = type(tool.name, (tool.fn_metadata.arg_model,), {"model_config": strict})
    tool.fn_metadata.arg_model = model
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


TOOLS: Mapping[str, Tool] = {
    function.__name__: _tool(function, changes=changes)
    for changes, functions in (
        (True, (*study_tools.CHANGING, *ddp_tools.CHANGING)),
        (False, (*study_tools.READING, *ddp_tools.READING)),
    )
    for function in functions
}


def _changes(tool: Tool) -> bool:
    return tool.annotations is None or not tool.annotations.read_only_hint


class _Server(ToolServer):
    """MCP server that limits the size of answers, and adds a next step to errors."""

    read_only: bool

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult:
        try:
            answer, is_error = await self._called(name, arguments, context), False
        except ToolProblem as problem:
            answer, is_error = problem.answer(), True
        return CallToolResult(content=[TextContent(type="text", text=text_of(answer))], is_error=is_error)

    async def _called(self, name: str, arguments: dict[str, Any], context: Any) -> Mapping[str, Any]:
        tool = TOOLS.get(name)
        if tool is None:
            raise ToolProblem(f"tool: found {name[:100]!r}, allowed: {', '.join(TOOLS)}", "call an allowed tool")
        if self.read_only and _changes(tool):
            cure = "ask a person to do it, or to run `automl mcp` without --read-only"
            raise ToolProblem(f"{name} is refused: this server is read-only", cure)
        try:
            answer: Mapping[str, Any] = await tool.run(arguments, context)
        except ToolError as error:
            raise _problem(tool, error.__cause__ or error) from None
        return answer


def make_server(backend_of: Callable[[Any], Backend], *, read_only: bool) -> ToolServer:
    """Return a server of all tools. `backend_of` maps a request's context to its backend."""
    if not logging.root.handlers and logging.lastResort is not None:
        logging.root.addHandler(logging.lastResort)  # otherwise the SDK adds its own handler
    tools = [tool for tool in TOOLS.values() if not (read_only and _changes(tool))]
    server = _Server("automl", instructions=INSTRUCTIONS, tools=tools, subscriptions=False)
    server.backend_of, server.read_only = backend_of, read_only
    return server


def serve_stdio(backend: Backend, *, read_only: bool) -> None:
    """Serve the tools on stdin and stdout until stdin ends."""
    make_server(lambda _context: backend, read_only=read_only).run()


def _problem(tool: Tool, error: BaseException) -> ToolProblem:
    if isinstance(error, ToolProblem):
        return error
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:200] or "arguments"
        known = ", ".join(tool.parameters["properties"]) or "none"
        step = f"call {tool.name} with other arguments; it has {known}"
        return ToolProblem(f"{place}: {first['msg']}"[:500], step)
    if isinstance(error, UserError | RunError):
        return ToolProblem(" ".join(str(error).split()), _next_step(error))
    if isinstance(error, DBAPIError) and is_away(error):
        return ToolProblem("the store does not answer now", "call again in a few seconds")
    log.error("the tool %s has failed", tool.name, exc_info=error)
    message = f"a bug in automl ({type(error).__name__}); its log has the traceback"
    return ToolProblem(message, f"call {tool.name} with other arguments, and report this bug")


def _next_step(error: Exception) -> str:
    status = error.status if isinstance(error, RefusedError) else 0
    if isinstance(error, MissingError) or status == _MISSING:
        return "call list_studies for names, and compare_trials for numbers"
    if isinstance(error, ConflictError) or status == _CONFLICT:
        return "call status, and wait or choose another name, as the error says"
    if isinstance(error, ForbiddenError) or status == _FORBIDDEN:
        return "ask a person whose role allows it"
    if isinstance(error, SpecError):
        return "change the key that the error names, and call again"
    if isinstance(error, UnreachableError):
        return "call again in a few seconds"
    return "change the arguments that the error names, and call again"
