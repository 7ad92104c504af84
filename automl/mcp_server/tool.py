"""Parts shared by all tools: the backend of a call, arguments with bounds, and consent to spending."""

from collections.abc import Callable
from typing import Annotated, Any, cast

from mcp.server.mcpserver import Context, MCPServer, Resolve
from pydantic import Field

from automl.backend import QueueBackend, ServiceBackend

Backend = QueueBackend | ServiceBackend


class ToolServer(MCPServer):
    """An MCP server that stores the backend of a call."""

    backend_of: Callable[[Any], Backend]


def _acting(context: Context) -> Backend:
    return cast("ToolServer", context.mcp_server).backend_of(context.request_context)


Acting = Annotated[Backend, Resolve(_acting)]
StudyName = Annotated[str, Field(min_length=1, max_length=200, description="Name of the study.")]
Usd = Annotated[float, Field(gt=0, le=1e6)]
Consent = Annotated[
    Usd | None,
    Field(
        description="Your consent to spend: at least the budget. Without it the tool returns its expected cost, and "
        "spends nothing."
    ),
]


def lacks_consent(tool: str, budget_usd: float, consent_usd: float | None, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a tool before consent: its plan, and how to consent."""
    given = "" if consent_usd is None else f"confirm_cost_usd is {consent_usd:g}, less than the budget. "
    step = f"{given}To continue, call {tool} again with the same arguments and confirm_cost_usd={budget_usd!r}."
    return {"started": False, "spent_usd": 0.0, "budget_usd": budget_usd, **expected, "next": step}


def is_agreed(budget_usd: float, consent_usd: float | None) -> bool:
    """Return whether the caller has consented to the whole budget."""
    return consent_usd is not None and consent_usd >= budget_usd
