"""Real studies and a real collector: one that takes spans, and one that would keep a study waiting."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from automl.terminal.exit_codes import NOTHING_COMPLETE
from studies.records import StudyRecord, TrialRecord
from studies.storage.reader import load_study
from studies.storage.store import Store
from studies.storage.views import catch_up
from studies.tracing.trace_context import VARIABLE, parse
from tests.support.collectors import TestedCollector
from tests.support.command_line import SLOW, Workplace, finish
from tests.support.ray_pool import LentPool

pytestmark = pytest.mark.ray
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPACE = dict(SLOW["space"], fault={"type": "categorical", "choices": ["very slow", "raise"]},
             at_epoch={"type": "categorical", "choices": [1]})  # fmt: skip
PROMOTION = {
    "sampler": "random",
    "pruner": {"name": "mo_asha", "variant": "promotion", "grace": 1, "eta": 2},
    "seed": 1,
    "first_trials": [{"fault": "raise"}, {"fault": "very slow"}, {"fault": "very slow"}, {"fault": "very slow"}],
}


@pytest.fixture
def place(tmp_path: Path, warm_pool: LentPool) -> Iterator[Workplace]:
    place = Workplace(tmp_path, warm_pool)
    yield place
    place.end_processes()


def record_of(place: Workplace) -> StudyRecord:
    with closing(Store(f"sqlite:///{place.folder}/automl.db")) as store:
        return load_study(store, "slow")


def catch_up_on(place: Workplace) -> None:
    with closing(Store(f"sqlite:///{place.folder}/automl.db")) as store:
        assert catch_up(store, "slow", ("traces",)) == {"traces": None}


def in_the_midst(rows: Sequence[TrialRecord]) -> bool:
    """Whether a trial trains while others wait or have failed."""
    return {"running"} < {row.state for row in rows} and any(row.state == "running" and row.epochs for row in rows)


@pytest.mark.large
@pytest.mark.timeout(600)
def test_a_killed_and_resumed_study_with_pauses_and_failures(
    place: Workplace, received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, CALLER)
    spec = place.spec(SLOW, space=SPACE, search=PROMOTION, training={"epochs": 3}, budget={"trials": 4})
    first = place.start("launch", spec)
    place.wait_for(in_the_midst, "slow")
    os.kill(first.pid, signal.SIGKILL)
    finish(first)
    code, _, said = finish(place.start("resume", "slow"))
    assert code in {0, NOTHING_COMPLETE}, said
    catch_up_on(place)  # the command itself waits some seconds only, which a machine with company may need
    record = record_of(place)
    attempts = {(trial.number, one.attempt): one for trial in record.started for one in trial.attempts}
    spans = {(one.attributes["automl.trial"], one.attributes["automl.attempt"]): one
             for one in received.named("train trial")}  # fmt: skip
    assert spans.keys() == attempts.keys()
    assert len(received.named("train trial")) == len(attempts), "none was sent twice"
    outcomes = {one.outcome for one in attempts.values()}
    assert {"paused", "failed", "interrupted"} <= outcomes, outcomes
    for of, span in spans.items():
        assert span.attributes["automl.outcome"] == attempts[of].outcome
        assert span.is_error == (attempts[of].outcome in {"failed", "interrupted"})
    dead, alive = sorted(received.named("run study"), key=lambda one: one.start)
    caller = parse(CALLER)
    assert {(one.trace_id, one.parent_id) for one in (dead, alive)} == {(caller.trace_id, caller.span_id)}
    assert {one.parent_id for one in spans.values()} == {dead.span_id, alive.span_id}
    assert (dead.message, alive.is_error) == ("its controller has died", False)
    spent = dead.attributes["automl.cost_usd"] + alive.attributes["automl.cost_usd"]
    assert spent == pytest.approx(record.cost_nano_usd / 1e9)
    failed = next(one for of, one in spans.items() if attempts[of].outcome == "failed")
    assert "Traceback" in failed.events[0]["exception.stacktrace"]


@pytest.mark.large
def test_a_collector_that_hangs_holds_no_study_up(
    place: Workplace, received: TestedCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    received.mood = "hangs"
    code, _, said = finish(place.start("launch", place.spec(SLOW, budget={"trials": 2})))
    ended_at = time.time()
    record = record_of(place)
    assert code == 0, said
    assert record.ended_at is not None
    assert ended_at - record.ended_at.timestamp() < 60.0, "with the report, and Ray's end, on a machine with company"
    assert said.count("OpenTelemetry") == 1
    # On a crowded machine others may be late as well.
    assert re.search(r"OpenTelemetry (is|are) not up to date yet; see `automl sync slow`", said), said
    assert list(place.folder.rglob("mlartifacts/**/report.html")), "the report is kept in MLflow all the same"
    received.released.set()
    received.mood = "takes"
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT")
    assert place.json("sync", "slow")["traces"] is None
    assert len(received.named("train trial")) == sum(len(trial.attempts) for trial in record.started)
    assert len(received.named("run study")) == 1
