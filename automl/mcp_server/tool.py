"""A tool: its name, what it says of itself, its arguments, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from automl.mcp_server.answers import ToolProblem
from automl.mcp_server.backend import Backend

Run = Callable[[Backend, Any], Awaitable[Mapping[str, Any]]]


class Arguments(BaseModel):
    """Arguments of a tool, all of which are known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedTool:
    """A tool that is served.

    Attributes:
        name: Name of the tool.
        description: What it does, for programs that choose one.
        arguments: Model of its arguments.
        run: Does it; raises `ToolProblem` or an error for users where it cannot.
        changes: Whether it starts, spends or stops something; a read-only server refuses it.
    """

    name: str
    description: str
    arguments: type[Arguments]
    run: Run
    changes: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        return self.arguments.model_json_schema()

    def parsed(self, given: Mapping[str, Any] | None) -> Arguments:
        """Return arguments, checked.

        Raises:
            ToolProblem: One is unknown, missing or out of range.
        """
        try:
            return self.arguments.model_validate(dict(given or {}))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])[:200] or "arguments"
            known = ", ".join(self.arguments.model_fields)
            message = f"{place}: {first['msg']}"[:500]
            raise ToolProblem(message, f"call {self.name} with other arguments; it has {known or 'none'}") from None
