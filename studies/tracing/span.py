"""A span as a plain value: what happened from when to when, below what, and whether it went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from studies.tracing.trace_context import TraceContext

AttributeValue = str | bool | int | float | Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that took time and has ended.

    Attributes:
        name: What kind of thing it is, without numbers: collectors group spans by it.
        context: Its own ids.
        parent: The span below which it stands; None begins a trace.
        started_at: Begin in seconds since 1970.
        ended_at: End in seconds since 1970, not before the begin.
        attributes: Further facts by name.
        error: What went wrong, in one line; empty if nothing did.
        traceback: Traceback or message of the error as it was caught; empty without one.
    """

    name: str
    context: TraceContext
    parent: TraceContext | None
    started_at: float
    ended_at: float
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""
