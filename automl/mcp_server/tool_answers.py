"""Answers of tools: plain data of limited length, and errors with the next step."""

import json
import math
from collections.abc import Mapping
from typing import Any

MOST_CHARACTERS = 20_000  # longest answer, in characters
_LONGEST_TEXT = 2_000
_TEXT_BY_LIST = 200  # characters of a text to keep for each list entry
_LONGEST_LISTS = (40, 20, 10, 5, 2, 1)  # list lengths to try in this order, until the answer is short enough


class ToolProblem(Exception):  # noqa: N818 - an answer, not a failure of the program
    """Reason why a tool did nothing, and the next step."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step

    def answer(self) -> dict[str, Any]:
        """Return the problem as plain data."""
        return {"error": str(self), "next": self.next_step}


def text_of(answer: Mapping[str, Any]) -> str:
    """Return JSON of at most `MOST_CHARACTERS` characters, without NaN or infinity, with counts of omitted entries."""
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
