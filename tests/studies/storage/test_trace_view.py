"""A collector is told the same story as the store, each span once, whatever dies on the way."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from automl.stored.auditing import audit
from studies.gangs.simulated import Curve
from studies.money.budget import Limits
from studies.records import AttemptRecord, StudyRecord, TrialRecord
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage import tables as t
from studies.storage import view_cursors, views
from studies.storage.changes import Confirmed
from studies.storage.copying import copy_store
from studies.storage.store import Store
from studies.tracing import trace_context
from tests.studies.storage.test_views import Cut, cut_at, drained
from tests.support.collectors import ENDPOINT, Received, TestedCollector
from tests.support.simulated_study import SimulatedStudy, smooth_curve

NAME = "simulated"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IN_ORDER = {"complete", "pruned", "paused", "cut"}


def troubled(params: Any, world_size: int) -> Curve:
    """A third of the trials diverge in epoch 4, and another third lose their first attempt."""
    curve = smooth_curve(params, world_size, epochs=9)
    kind = round(float(params["learning_rate"]) * 1e6) % 3
    if kind == 0:
        metrics = [dict(one) for one in curve.metrics]
        metrics[3]["val_error"] = float("nan")
        return Curve(metrics=tuple(metrics), epoch_seconds=curve.epoch_seconds)
    fails_at: Any = {1: (2, "lost")} if kind == 1 else None
    return Curve(metrics=curve.metrics, epoch_seconds=curve.epoch_seconds, fails_at=fails_at)


def make(folder: Path, curve: Callable[[Any, int], Curve] = troubled) -> SimulatedStudy:
    policy = Policy(pruner=MoAsha(variant="promotion"))
    return SimulatedStudy(folder, epochs=9, slots=2, policy=policy, curve=curve)


def told(study: SimulatedStudy) -> None:
    assert views.catch_up(study.store, NAME, ("traces",)) == {"traces": None}
    assert views.lag(study.store, NAME)["traces"] == 0


def ended(record: StudyRecord) -> dict[tuple[int, int], tuple[TrialRecord, AttemptRecord]]:
    return {
        (int(trial.number or 0), one.attempt): (trial, one)
        for trial in record.started
        for one in trial.attempts
        if one.ended_at is not None
    }


def check(study: SimulatedStudy, received: TestedCollector) -> dict[tuple[int, int], Received]:
    """Each attempt that has ended is one span, and the money of all spans is that of the ledger."""
    record, runs = study.record(), received.named("run study")
    attempts = {(span.attributes["automl.trial"], span.attributes["automl.attempt"]): span
                for span in received.named("train trial")}  # fmt: skip
    assert len(received.named("train trial")) == len(attempts), "none was sent twice"
    assert attempts.keys() == ended(record).keys()
    assert len({span.span_id for span in received.spans}) == len(received.spans)
    by_id = {run.span_id: run for run in runs}
    for of, (trial, one) in ended(record).items():
        span, charges = attempts[of], [c for c in record.charges if (c.trial, c.attempt) == of]
        run = by_id[span.parent_id]
        assert span.trace_id == run.trace_id
        assert run.start - 1e-6 <= span.start <= span.end <= run.end + 1e-6
        assert span.start == pytest.approx(one.started_at.timestamp(), abs=1e-5)
        found = span.attributes
        assert found["automl.study"] == NAME
        assert found["automl.ranks"] == one.world_size
        assert tuple(found["automl.slots"]) == one.slots
        assert found["automl.outcome"] == one.outcome
        assert found["automl.cost_usd"] == pytest.approx(sum(c.cost_nano_usd for c in charges) / 1e9)
        assert span.is_error == (one.outcome not in IN_ORDER), one.outcome
        if of[1] == len(trial.attempts) and trial.state == "failed":
            assert span.message == trial.reason
            assert trial.error in span.events[0]["exception.stacktrace"]
    spent = sum(run.attributes["automl.cost_usd"] for run in runs)
    assert spent == pytest.approx(record.cost_nano_usd / 1e9)
    epochs = sum(span.attributes["automl.epochs"] for span in attempts.values())
    assert epochs == sum(len(trial.epochs) for trial in record.started)
    return attempts


def test_a_study_with_pauses_failures_and_lost_attempts(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=25))
    told(study)
    attempts = check(study, received)
    outcomes = {span.attributes["automl.outcome"] for span in attempts.values()}
    assert {"paused", "complete", "failed", "lost"} <= outcomes
    (run,) = received.named("run study")
    record = study.record()
    assert run.parent_id == 0, "it begins a trace"
    assert not run.is_error, "a trial that fails is no failure of its study"
    assert run.attributes["automl.study_uid"] == record.uid
    assert len(run.attributes["automl.spec_sha256"]) == 64
    assert run.attributes["automl.budget.trials"] == 25
    assert run.attributes["automl.pool.slots"] == 2
    assert run.attributes["automl.pool.usd_per_slot_hour"] == pytest.approx(study.price)
    assert (run.attributes["automl.state"], run.attributes["automl.stop_reason"]) == ("closed", record.stop_reason)
    assert run.attributes["host.name"] == socket.gethostname()
    paused = next(span for span in attempts.values() if span.attributes["automl.outcome"] == "paused")
    of = paused.attributes["automl.trial"]
    reasons = {one.reason for trial in record.started if trial.number == of for one in trial.decisions}
    assert paused.attributes["automl.reason"] in reasons, "why it was paused, although it may have gone on since"
    assert paused.seconds == pytest.approx(sum(
        value for name, value in paused.attributes.items() if name.endswith(".seconds")
    ), abs=1e-3), "its time is charged to it"  # fmt: skip


def test_each_pass_sends_what_is_new(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path)
    drained(study, Limits(trials=30), after_ends=5)
    told(study)
    first = len(received.spans)
    check(study, received)
    requests = received.requests
    told(study)
    assert received.requests == requests, "a pass without news asks nobody"
    study.run(Limits(trials=30))
    told(study)
    check(study, received)
    assert len(received.spans) > first
    assert len({run.trace_id for run in received.named("run study")}) == 2, "each run is a trace"


def test_a_run_stands_below_the_process_that_started_it(
    tmp_path: Path, received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=4))
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.leases).values(trace_parent=CALLER))
    told(study)
    check(study, received)
    caller = trace_context.parse(CALLER)
    (run,) = received.named("run study")
    assert (run.trace_id, run.parent_id) == (caller.trace_id, caller.span_id)
    assert {span.trace_id for span in received.spans} == {caller.trace_id}


def test_a_trace_that_its_caller_does_not_record_is_not_sent(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=4))
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.leases).values(trace_parent=CALLER[:-2] + "00"))
    told(study)
    assert received.requests == 0


@pytest.mark.parametrize("is_told_before", [False, True])
def test_a_killed_controller(tmp_path: Path, received: TestedCollector, is_told_before: bool) -> None:
    """The next one tells what the dead one could not; an interrupted attempt ends with its controller."""
    study = make(tmp_path)
    assert study.run_until_killed(Limits(trials=12), commits=25)
    if is_told_before:
        told(study)
        assert received.named("train trial")
        assert received.named("run study") == [], "nobody knows yet that it has ended"
    study.run(Limits(trials=12))
    told(study)
    attempts = check(study, received)
    first, second = sorted(received.named("run study"), key=lambda run: run.start)
    assert (first.is_error, first.message) == (True, "its controller has died")
    assert not second.is_error
    interrupted = [one for one in attempts.values() if one.attributes["automl.outcome"] == "interrupted"]
    assert interrupted
    for span in interrupted:
        assert (span.parent_id, span.is_error) == (first.span_id, True)
        assert span.end <= first.end + 1e-6 < second.start, "not with the controller that found it"
    again = {span.attributes["automl.trial"] for span in interrupted}
    assert again & {span.attributes["automl.trial"] for span in attempts.values() if span.parent_id == second.span_id}


def test_spans_that_are_sent_again_are_the_same_spans(
    tmp_path: Path, received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the collector has taken them and the cursor has not moved."""
    study = make(tmp_path)
    study.run(Limits(trials=8))
    with monkeypatch.context() as patch:
        cut_at(patch, views.Mirror, "_advance_cursor", 1, after=False)
        with pytest.raises(Cut):
            views.catch_up(study.store, NAME, ("traces",))
    first = list(received.spans)
    with study.store.engine.begin() as connection:  # a process that was killed releases nothing
        connection.execute(sa.update(t.view_cursors).values(details={}))
    told(study)
    assert first
    assert received.spans == [*first, *first]


def test_sync_sends_everything_again(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=4))
    told(study)
    first = list(received.spans)
    assert views.rebuild(study.store, NAME)["traces"] is None
    assert received.spans == [*first, *first]


def late(study: SimulatedStudy) -> list[str]:
    """Views that an audit finds not to equal the rows."""
    return [one["where"] for one in audit(study.store, NAME)["findings"] if one["check"] == "views"]


def test_what_happened_without_a_collector_is_sent_once_there_is_one(
    tmp_path: Path, received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.delenv(ENDPOINT)
        study.run(Limits(trials=4))
        assert views.catch_up(study.store, NAME) == {"optuna": None}
        assert views.rebuild(study.store, NAME) == {"optuna": None}
        assert [view.view for view in study.record().views] == ["optuna"], "nothing is late that nobody wants"
        assert late(study) == []
        assert received.requests == 0
    assert late(study) == ["traces"]
    told(study)
    check(study, received)
    assert late(study) == []


def test_a_collector_that_refuses_gets_all_of_it_later(
    tmp_path: Path, received: TestedCollector, caplog: pytest.LogCaptureFixture
) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=4))
    received.mood = "refuses"
    for _ in range(3):
        error = views.catch_up(study.store, NAME, ("traces",))["traces"]
        assert error is not None
        assert error.startswith(f"CollectorError: the collector {received.url} took no spans: ")
    assert len(caplog.records) == 1, "it is said once"
    (late,) = [view for view in study.record().views if view.view == "traces"]
    assert (late.behind > 0, late.error) == (True, error)
    received.mood = "takes"
    told(study)
    check(study, received)
    assert view_cursors.progress(study.store, NAME)["traces"].error is None


def test_other_views_do_not_wait_for_a_collector_that_hangs(
    tmp_path: Path, received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "20")
    monkeypatch.setattr(views, "LAST_REQUEST_SECONDS", 0.2)
    study = make(tmp_path)
    study.run(Limits(trials=4))
    received.mood = "hangs"
    began = time.monotonic()
    views.follow(study.store, NAME, lambda: time.monotonic() - began > 2.0)
    assert time.monotonic() - began < 10.0
    assert views.lag(study.store, NAME)["optuna"] == 0
    received.mood = "takes"
    received.released.set()
    for thread in threading.enumerate():  # what comes after is another test's
        if thread.name == "view-traces":
            thread.join(30.0)


def test_confirmed_trainings_are_spans_of_the_run_that_trained_them(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path, smooth_curve_of_nine)
    study.run(Limits(trials=2))
    trial = next(one for one in study.record().started if one.state == "complete")
    at = study.clock - 0.25
    study.store.commit(study.study_id, None, [Confirmed(
        trial_id=trial.id, seed=11, epoch=9, epochs=9, metrics={"val_error": 0.1}, wall_seconds=0.25,
        cost_nano_usd=2_000_000, checkpoint=None, at=at,
    )])  # fmt: skip
    told(study)
    (span,), (run,) = received.named("confirm trial"), received.named("run study")
    assert (span.parent_id, span.trace_id) == (run.span_id, run.trace_id)
    assert (span.attributes["automl.trial"], span.attributes["automl.seed"]) == (trial.number, 11)
    assert span.attributes["automl.cost_usd"] == pytest.approx(0.002)
    assert (span.end, span.seconds) == (pytest.approx(at, abs=1e-6), pytest.approx(0.25, abs=1e-6))


def smooth_curve_of_nine(params: Any, world_size: int) -> Curve:
    return smooth_curve(params, world_size, epochs=9)


def test_the_copy_of_a_store_sends_nothing_that_was_sent(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=3))
    told(study)
    before = len(received.spans)
    target = Store(f"sqlite:///{tmp_path}/copy.db")
    copy_store(study.store, target)
    assert views.catch_up(target, NAME, ("traces",)) == {"traces": None}
    assert len(received.spans) == before
    target.close()


def test_credentials_in_a_spec_and_in_errors_stay_here(tmp_path: Path, received: TestedCollector) -> None:
    study = make(tmp_path)
    study.run(Limits(trials=6))
    failed = next(one for one in study.record().started if one.state == "failed")
    secret = {"reason": "error: OSError: http://me:hidden@host", "error": "Traceback\nOSError: http://me:hidden@host"}
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.trials).where(t.trials.c.id == failed.id).values(**secret))
    told(study)
    assert any(span.message == "error: OSError: http://***@host" for span in received.spans)
    assert "hidden" not in json.dumps([[span.message, span.attributes, span.events] for span in received.spans])
