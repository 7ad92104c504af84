"""Consent to spending: a tool that spends says first what it expects, and does it only for who has read that."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

Usd = Annotated[float, Field(gt=0, le=1e6)]

CONSENT = (
    "Your consent to spend: at least the budget. Without it the tool says what it expects to cost, and spends nothing."
)


def lacks_consent(tool: str, budget_usd: float, consent_usd: float | None, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a tool that has spent nothing yet.

    Args:
        tool: Name of the tool.
        budget_usd: Largest cost in dollars.
        consent_usd: What the caller has consented to; None without consent.
        expected: What would be done, and what that is expected to cost.
    """
    given = "" if consent_usd is None else f"confirm_cost_usd is {consent_usd:g}, less than the budget. "
    step = f"{given}To go on, call {tool} again with the same arguments and confirm_cost_usd={budget_usd!r}."
    return {"started": False, "spent_usd": 0.0, "budget_usd": budget_usd, **expected, "next": step}


def is_agreed(budget_usd: float, consent_usd: float | None) -> bool:
    """Whether the caller has consented to all that the budget allows."""
    return consent_usd is not None and consent_usd >= budget_usd
