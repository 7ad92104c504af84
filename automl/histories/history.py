"""Runs that another tool recorded, in one form for all sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from studies.records.records import Direction

State = Literal["finished", "cut short", "failed", "unfinished"]
Curve = Mapping[float, float]
"""Values of a metric by step."""
_WORDS: Mapping[str, State] = {
    **dict.fromkeys(("", "finished", "complete", "completed", "success", "terminated"), "finished"),
    **dict.fromkeys(("pruned", "killed", "preempted", "stopped"), "cut short"),
    **dict.fromkeys(("failed", "fail", "crashed", "error"), "failed"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: parameters and last values of metrics by name, curves by metric, and its seconds (None if unknown)."""

    state: State
    values: Mapping[str, object]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Runs of one source, and the better directions of metrics where the source knows them."""

    source: str
    runs: tuple[Run, ...]
    directions: Mapping[str, Direction] = field(default_factory=dict)


def state_of(word: str) -> State:
    """Return the state that a tool's word means; a run in any other state, such as `running`, is unfinished."""
    return _WORDS.get(word.strip().lower(), "unfinished")
