"""Contexts are read as W3C Trace Context writes them; what is none never stops anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.tracing import trace_context
from studies.tracing.trace_context import TraceContext, inherited, parse, span_id_of, trace_id_of, valid_header

EXAMPLE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_context_is_read_as_it_was_written(trace_id: int, span_id: int, is_sampled: bool) -> None:
    context = TraceContext(trace_id=trace_id, span_id=span_id, is_sampled=is_sampled)
    assert parse(context.header()) == context
    assert len(context.header()) == 55, "as long as the store's column"


def test_the_example_of_the_standard() -> None:
    context = parse(EXAMPLE)
    assert context is not None
    assert context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert context.span_id == 0xB7AD6B7169203331
    assert context.is_sampled
    assert context.header() == EXAMPLE


@pytest.mark.parametrize(
    "header",
    [None, "", "junk", EXAMPLE.upper(), EXAMPLE + "-more", "ff" + EXAMPLE[2:], EXAMPLE[:-1], EXAMPLE + "\n",
     "00-1-2-01", EXAMPLE.replace("b7ad6b7169203331", "0" * 16),
     EXAMPLE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)],
)  # fmt: skip
def test_what_is_no_context_counts_as_none(header: str | None) -> None:
    assert parse(header) is None
    assert valid_header(header) is None


def test_flags_and_versions_to_come_are_taken_as_far_as_they_are_known() -> None:
    later = "cc" + EXAMPLE[2:-2] + "03-what-comes-later"
    assert valid_header(later) == EXAMPLE
    assert parse(EXAMPLE[:-2] + "02") == TraceContext(
        trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=0xB7AD6B7169203331, is_sampled=False
    )


def test_a_process_inherits_a_context_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(trace_context.VARIABLE, raising=False)
    assert inherited() is None
    monkeypatch.setenv(trace_context.VARIABLE, "junk")
    assert inherited() is None
    monkeypatch.setenv(trace_context.VARIABLE, EXAMPLE)
    assert inherited() == EXAMPLE


def test_ids_follow_from_what_they_are_about() -> None:
    assert trace_id_of("a", 1) == trace_id_of("a", 1)
    assert len({trace_id_of("a", 1), trace_id_of("a", 2), trace_id_of("a1"), trace_id_of("a", "", 1)}) == 4
    assert len({span_id_of("uid", 1, trial, attempt) for trial in range(100) for attempt in range(1, 30)}) == 2900
    assert 0 < span_id_of("x") < 2**64
    assert 0 < trace_id_of("x") < 2**128
