"""Shared by all tools: a call's backend, bounded arguments, consent to spend money."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from mcp.server.mcpserver import Context, MCPServer, Resolve
from pydantic import Field

from automl.backend import QueueBackend, ServiceBackend

Backend = QueueBackend | ServiceBackend
StudyName = Annotated[str, Field(min_length=1, max_length=200, description="Name of the study.")]
Usd = Annotated[float, Field(gt=0, le=1e6)]
Consent = Annotated[
    Usd | None,
    Field(
        description="Your consent to spend: at least the budget. Without it the tool returns its expected cost, and "
        "spends nothing."
    ),
]
MOST_CHARACTERS = 20_000  # characters of the longest answer
_LONGEST_TEXT = 2_000
_TEXT_BY_LIST = 200  # characters of a text to keep for each list entry
_LONGEST_LISTS = (40, 20, 10, 5, 2, 1)  # list lengths to try in this order, until the answer is short enough


class ToolServer(MCPServer):
    """An MCP server that knows the backend of a call."""

    backend_of: Callable[[Any], Backend]


def _acting(context: Context) -> Backend:
    return cast("ToolServer", context.mcp_server).backend_of(context.request_context)


Acting = Annotated[Backend, Resolve(_acting)]


def lacks_consent(tool: str, budget_usd: float, consent_usd: float | None, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a tool that needs consent to spend: its plan, and how to consent."""
    given = "" if consent_usd is None else f"confirm_cost_usd is {consent_usd:g}, less than the budget. "
    step = f"{given}To continue, call {tool} again with the same arguments and confirm_cost_usd={budget_usd!r}."
    return {"started": False, "spent_usd": 0.0, "budget_usd": budget_usd, **expected, "next": step}


def is_agreed(budget_usd: float, consent_usd: float | None) -> bool:
    """Return whether the caller has consented to spend the whole budget."""
    return consent_usd is not None and consent_usd >= budget_usd


class ToolProblem(Exception):  # noqa: N818 - an answer, not a failure of the program
    """Reason why a tool did nothing, with the caller's next step."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step

    def answer(self) -> dict[str, Any]:
        """Return the problem as plain data."""
        return {"error": str(self), "next": self.next_step}


def text_of(answer: Mapping[str, Any]) -> str:
    """Return JSON of at most `MOST_CHARACTERS` characters, without NaN and infinity. Counts omitted entries."""
    for longest in _LONGEST_LISTS:
        text = json.dumps(_cut(answer, longest), ensure_ascii=False, allow_nan=False, default=str)
        if len(text) <= MOST_CHARACTERS:
            return text
    short = {"error": f"the answer has {len(text)} characters", "next": "ask for one trial or one study"}
    return json.dumps(short)


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        half = min(_LONGEST_TEXT, _TEXT_BY_LIST * longest) // 2
        return value if len(value) <= 2 * half else f"{value[:half]} ... {value[-half:]}"
    if isinstance(value, Mapping):
        return {str(name)[:200]: _cut(one, longest) for name, one in list(value.items())[: 10 * longest]}
    if isinstance(value, list | tuple):
        kept = [_cut(one, longest) for one in value[:longest]]
        left = len(value) - longest
        return [*kept, f"... and {left} more"] if left > 0 else kept
    return value
