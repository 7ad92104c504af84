"""One trace goes from a request over the queue and a worker to the attempts of a study."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from automl.service.job_traces import NoTraces, SentTraces, job_traces
from studies.queueing.job_queue import Submission
from studies.queueing.turns import Start
from studies.storage.reader import load_study
from studies.tracing.trace_context import VARIABLE, parse
from tests.automl.service.test_worker import wait_until, worker
from tests.support.collectors import ENDPOINT, TestedCollector
from tests.support.service import TestedService, bearer, spec_of

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.large
@pytest.mark.ray
def test_a_trace_from_the_request_to_the_attempts(
    service: TestedService, received: TestedCollector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "00-" + "7" * 32 + "-" + "7" * 16 + "-01")  # the worker's own caller is no job's
    with TestClient(service.app(), headers=bearer(service.token())) as client:
        answer = client.post("/api/v1/studies", json={"spec": spec_of("a")}, headers={"traceparent": CALLER})
        assert answer.status_code == 202
        client.post("/api/v1/studies", json={"spec": spec_of("b")}, headers={"traceparent": "junk"})
    with service.store.engine.begin() as connection:  # its process fails before a controller begins
        connection.exec_driver_sql(
            "UPDATE automl_jobs SET spec = json_set(spec, '$.task', 'absent_module:Task') WHERE study = 'vision.b'"
        )
    with worker(service, "w"):
        wait_until(lambda: service.queue.require("vision.a").state == "done", "the study")
        wait_until(lambda: service.queue.require("vision.b").state == "failed", "the broken one")
        runs = received.wait_for("run job", 2)
    of_a = next(one for one in runs if one.attributes["automl.study"] == "vision.a")
    of_b = next(one for one in runs if one.attributes["automl.study"] == "vision.b")
    caller = parse(CALLER)
    assert (of_a.trace_id, of_a.parent_id) == (caller.trace_id, caller.span_id)
    assert of_a.attributes["automl.outcome"] == "done"
    assert (of_b.parent_id, of_b.is_error) == (0, True)
    assert of_b.trace_id not in {caller.trace_id, int("7" * 32, 16)}
    assert of_b.message == service.queue.require("vision.b").reason
    mine = [span for span in received.spans if span.trace_id == caller.trace_id]
    by_name = {span.name: span for span in mine}
    for name in ("wait in queue", "start process", "run study"):
        assert by_name[name].parent_id == of_a.span_id, name
    study, record = by_name["run study"], load_study(service.store, "vision.a")
    attempts = [span for span in mine if span.name == "train trial"]
    assert {span.parent_id for span in attempts} == {study.span_id}
    assert len(attempts) == sum(len(trial.attempts) for trial in record.started) == 2
    assert study.attributes["automl.cost_usd"] == pytest.approx(record.cost_nano_usd / 1e9)
    assert of_a.start <= by_name["wait in queue"].start <= by_name["wait in queue"].end
    assert by_name["start process"].end <= study.start <= study.end <= of_a.end
    lines = [json.loads(line) for line in (tmp_path / "w.log").read_text().splitlines()]
    assert [line for line in lines if line.get("level") == "warning"] == []


def job_of(service: TestedService, trace_parent: str | None) -> Start:
    service.queue.submit(Submission(
        study=f"s{trace_parent is None}", project="p", user="ann", spec={}, base_folder=".", slots=1,
        limit_nano_usd=None, trace_parent=trace_parent,
    ))  # fmt: skip
    turn = service.queue.take_turn(service.queue.register("w", device="cpu", slots=1), 1)
    assert isinstance(turn, Start)
    return turn


def test_a_worker_without_a_collector_hands_the_context_on(service: TestedService) -> None:
    told: list[str] = []
    traces = job_traces(service.queue, lambda line, **_: told.append(line))
    assert isinstance(traces, NoTraces)
    for header in (CALLER, None):
        turn = job_of(service, header)
        assert traces.environment(turn.job, turn.job.run) == ({} if header is None else {VARIABLE: header})
    assert told == []


def test_a_worker_with_a_collector_hands_on_the_context_of_the_run(
    service: TestedService, received: TestedCollector
) -> None:
    traces = job_traces(service.queue, lambda line, **_: pytest.fail(line))
    assert isinstance(traces, SentTraces)
    turn = job_of(service, CALLER)
    handed = parse(traces.environment(turn.job, turn.job.run)[VARIABLE])
    traces.started(turn.job, turn.job.run)
    service.queue.end_run(turn.job.run.id, "done")
    traces.ended(turn.job, turn.job.run)
    traces.close()
    (run,) = received.named("run job")
    assert (run.trace_id, run.span_id) == (handed.trace_id, handed.span_id)
    assert [span.name for span in received.spans] == ["wait in queue", "start process", "run job"]


def test_settings_that_are_wrong_are_one_line_and_jobs_run(
    service: TestedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert isinstance(job_traces(service.queue, lambda line, **_: told.append(line)), NoTraces)
    assert len(told) == 1
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: found grpc" in told[0]


def test_a_command_against_a_service_goes_on_with_the_trace_of_its_caller(
    service: TestedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`automl submit` beside the queue; CI systems set TRACEPARENT."""
    (service.folder / "one.yaml").write_text(json.dumps(spec_of("one")))
    command = [sys.executable, "-m", "automl", "submit", "one.yaml", "--store", service.store.url]
    monkeypatch.setenv(VARIABLE, CALLER)
    subprocess.run(command, cwd=service.folder, check=True, capture_output=True)
    assert service.queue.require("one").trace_parent == CALLER


def test_a_resumed_job_goes_on_below_the_request_that_resumed_it(service: TestedService) -> None:
    later = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    with TestClient(service.app(), headers=bearer(service.token())) as client:
        client.post("/api/v1/studies", json={"spec": spec_of("a")}, headers={"traceparent": CALLER})
        assert service.queue.require("vision.a").trace_parent == CALLER
        client.post("/api/v1/studies/a/stop")
        client.post("/api/v1/studies/a/resume", json={}, headers={"traceparent": later})
        assert service.queue.require("vision.a").trace_parent == later
        client.post("/api/v1/trainings", json={"name": "t", "task": "digits"}, headers={"traceparent": CALLER})
        assert service.queue.require("vision.t").trace_parent == CALLER
