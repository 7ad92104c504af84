"""The place of a span among others, and how one process tells it to the next (W3C Trace Context, `traceparent`).

Ids are made of what a span is about, not of chance: whoever sends it again, after a crash or since an answer was lost,
sends the same span.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

VARIABLE = "TRACEPARENT"
"""Environment variable in which a process gets the context that it was started in."""
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceContext:
    """A span, as those below it name it.

    Attributes:
        trace_id: Id of its trace, of 128 bits, not 0.
        span_id: Id of the span, of 64 bits, not 0.
        is_sampled: Whether the trace is recorded.
    """

    trace_id: int
    span_id: int
    is_sampled: bool = True

    def header(self) -> str:
        """The context as the value of a `traceparent` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def parse(header: str | None) -> TraceContext | None:
    """The context of a `traceparent` header; None without one, and for what is none, as the standard asks for."""
    found = _HEADER.fullmatch(header or "")
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and rest) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id=trace_id, span_id=span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))


def valid_header(header: str | None) -> str | None:
    """The header in the form of version 00, which a store can keep; None if it is no context."""
    context = parse(header)
    return None if context is None else context.header()


def inherited() -> str | None:
    """The header of the context that this process was started in; None without one."""
    return valid_header(os.environ.get(VARIABLE))


def trace_id_of(*what: object) -> int:
    """Id of the trace that begins with what is named."""
    return _hashed("trace", *what) or 1


def span_id_of(*what: object) -> int:
    """Id of the span of what is named."""
    return _hashed("span", *what) >> 64 or 1


def _hashed(*parts: object) -> int:
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
