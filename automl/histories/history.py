"""Runs that another tool recorded, in one form for all sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from search_spaces.wording import found, listed
from studies.records.records import Direction
from studies.spec.spec_errors import SpecError

State = Literal["finished", "cut short", "failed", "running"]
Curve = Mapping[float, float]
"""Values of a metric by step."""
_STATES: Mapping[str, State] = {
    **dict.fromkeys(("", "finished", "complete", "completed", "success", "terminated"), "finished"),
    **dict.fromkeys(("pruned", "killed", "preempted", "stopped"), "cut short"),
    **dict.fromkeys(("failed", "fail", "crashed", "error"), "failed"),
    **dict.fromkeys(("running", "waiting", "pending", "queued", "scheduled", "paused", "preempting"), "running"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: parameters and last values of metrics by name, curves by metric, and its seconds (None if unknown)."""

    name: str
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


def state_of(word: str, source: str) -> State:
    """Return the state that a tool's word means. SpecError for an unknown word."""
    state = _STATES.get(word.strip().lower())
    if state is None:
        raise SpecError(source, (), found(word, f"a state: {listed(name for name in _STATES if name)}"))
    return state
