"""Spans of a study, made of its rows: a run of a controller, and below it the attempts that have ended in it.

    run study ─┬─ train trial       one for each attempt: from a start or a thaw to the next pause, end or fault
               └─ confirm trial     one for each training of `automl confirm`

Ids follow from the study's identity and the numbers of its rows: a span that is sent again is the same span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from search_spaces.outside_text import last_line
from studies.records import NANO
from studies.redact import redact
from studies.storage.trace_rows import ConfirmedTraining, EndedAttempt, Money, Run
from studies.storage.view_rows import MirroredStudy
from studies.tracing.span import AttributeValue, Span
from studies.tracing.trace_context import TraceContext, parse, span_id_of, trace_id_of

RUN, ATTEMPT, CONFIRMATION = "run study", "train trial", "confirm trial"
DIED = "its controller has died"
LONGEST_ERROR, LONGEST_TRACEBACK = 500, 8000
"""Numbers of characters."""
_IN_ORDER = frozenset({"complete", "pruned", "paused", "cut"})
"""Outcomes of attempts that nothing went wrong in."""
Samples = Callable[[int, str], bool]


def context_of(study: MirroredStudy, run: Run, samples: Samples) -> TraceContext:
    """Ids of the span of a run, in the trace that it was started in, else in one of its own.

    Args:
        study: The study.
        run: The run.
        samples: Function that says whether a trace with this id, which begins with a span of this name, is recorded.
    """
    parent = parse(run.trace_parent)
    span_id = span_id_of(study.uid, run.lease_id)
    if parent is not None:
        return TraceContext(trace_id=parent.trace_id, span_id=span_id, is_sampled=parent.is_sampled)
    trace_id = trace_id_of(study.uid, run.lease_id)
    return TraceContext(trace_id=trace_id, span_id=span_id, is_sampled=samples(trace_id, RUN))


def run_span(study: MirroredStudy, run: Run, context: TraceContext, money: Money, error: str) -> Span:
    """The span of a run whose pool is closed.

    Args:
        study: The study.
        run: The run.
        context: Its ids.
        money: What its pool was charged.
        error: The error that ended the study; empty without one.
    """
    ended = {"automl.state": study.state, "automl.stop_reason": study.stop_reason or ""} if run.is_latest else {}
    has_failed = run.is_latest and study.state == "failed" and not run.has_died
    return Span(
        name=RUN,
        context=context,
        parent=parse(run.trace_parent),
        started_at=run.started_at,
        ended_at=run.started_at if run.ended_at is None else run.ended_at,
        attributes={
            **_of_study(study),
            "automl.spec_sha256": study.spec_sha256,
            **_budget(study.spec),
            "automl.pool.slots": run.slots,
            "automl.pool.device": _device(study.spec),
            "automl.pool.usd_per_slot_hour": run.usd_per_slot_hour,
            "host.name": run.host,
            "process.pid": run.pid,
            **ended,
            **_spent(money, "slot_seconds"),
        },
        error=DIED if run.has_died else (_line(last_line(error)) or "failed") if has_failed else "",
        traceback=_traceback(error) if has_failed else "",
    )


def attempt_span(study: MirroredStudy, run: Run, context: TraceContext, one: EndedAttempt) -> Span:
    """The span of an attempt.

    Args:
        study: The study.
        run: Its run, beyond whose end no attempt of a dead controller goes.
        context: Ids of the run's span.
        one: The attempt.
    """
    wrong = "" if one.outcome in _IN_ORDER else _what_went_wrong(one)
    ended_at = one.ended_at if run.ended_at is None else min(one.ended_at, run.ended_at)
    return Span(
        name=ATTEMPT,
        context=_below(context, study.uid, run.lease_id, one.trial, one.attempt),
        parent=context,
        started_at=one.started_at,
        ended_at=ended_at,
        attributes={
            **_of_study(study),
            "automl.trial": one.trial,
            "automl.attempt": one.attempt,
            "automl.ranks": len(one.slots),
            "automl.slots": one.slots,
            "automl.device": _device(study.spec),
            "automl.start_epoch": one.start_epoch,
            "automl.epochs": one.epochs,
            "automl.outcome": one.outcome,
            "automl.reason": _line(one.reason),
            **_spent(one.money, "seconds"),
        },
        error=wrong,
        traceback=_traceback(one.error) if wrong else "",
    )


def confirmation_span(study: MirroredStudy, run: Run, context: TraceContext, one: ConfirmedTraining) -> Span:
    """The span of a training of `automl confirm`; arguments are those of `attempt_span`."""
    return Span(
        name=CONFIRMATION,
        context=_below(context, study.uid, run.lease_id, "confirmation", one.id),
        parent=context,
        started_at=one.started_at,
        ended_at=one.ended_at,
        attributes={
            **_of_study(study),
            "automl.trial": one.trial,
            "automl.epoch": one.epoch,
            "automl.epochs": one.epochs,
            "automl.seed": one.seed,
            "automl.cost_usd": one.cost_nano_usd / NANO,
        },
    )


def _below(parent: TraceContext, *what: object) -> TraceContext:
    return TraceContext(trace_id=parent.trace_id, span_id=span_id_of(*what), is_sampled=parent.is_sampled)


def _of_study(study: MirroredStudy) -> dict[str, AttributeValue]:
    return {"automl.study": study.name, "automl.study_uid": study.uid}


def _budget(spec: Mapping[str, Any]) -> dict[str, AttributeValue]:
    limits = {name: value for name, value in spec["budget"].items() if isinstance(value, int | float)}
    return {f"automl.budget.{name}": value for name, value in limits.items()}


def _device(spec: Mapping[str, Any]) -> str:
    resources = spec.get("resources")
    return str(resources.get("device", "auto")) if isinstance(resources, Mapping) else "auto"


def _spent(money: Money, unit: str) -> dict[str, AttributeValue]:
    """Dollars and time together and by kind of charge, such as `automl.train.usd`."""
    found: dict[str, AttributeValue] = {"automl.cost_usd": _usd(cost for cost, _ in money.values())}
    for kind, (cost, time) in money.items():
        found |= {f"automl.{kind}.usd": cost / NANO, f"automl.{kind}.{unit}": time}
    return found


def _usd(nano: Iterable[int]) -> float:
    return sum(nano) / NANO


def _what_went_wrong(one: EndedAttempt) -> str:
    if one.outcome == "interrupted":
        return DIED
    return _line(one.reason or last_line(one.error) or one.outcome)


def _line(text: str) -> str:
    return redact(" ".join(text.split()))[:LONGEST_ERROR]


def _traceback(text: str) -> str:
    """The end of a text, where a traceback has its error."""
    return redact(text)[-LONGEST_TRACEBACK:]
