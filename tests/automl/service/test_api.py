"""The API: a submission with its checks, lists by project, errors of one line, and an OpenAPI document that holds."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.exc import DataError

from studies.queueing.turns import Start
from tests.support.service import TestedService, bearer, spec_of


@pytest.fixture
def client(service: TestedService) -> Iterator[TestClient]:
    with TestClient(service.app(), headers=bearer(service.token())) as one:
        yield one


def test_a_spec_may_be_the_text_of_a_file(client: TestClient) -> None:
    text = "study: b\ntask: digits\nbudget: {usd: 5e-1, trials: 3}\nresources: {slots: 2}\n"
    answer = client.post("/api/v1/studies", json={"spec": text})
    job = answer.json()
    assert (answer.status_code, job["study"], job["limit_usd"], job["slots"]) == (202, "vision.b", 0.5, 2)
    assert client.get("/api/v1/studies/b").json() == {"job": client.get("/api/v1/studies").json()[0], "study": None}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"spec": "study: [a"}, "spec: the text is not YAML"),
        ({"spec": "x: " + "[" * 900 + "]" * 900}, "values nested too deeply"),
        ({"spec": "study: a\nstudy: b"}, "found the key 'study' in line 2 and in line 1"),
        ({"spec": "- a"}, "the YAML text is not a mapping. Send the text of a spec"),
        ({"spec": {"study": "a", "task": "digits", "bugdet": {}}}, "spec: bugdet: found"),
        ({"spec": {"study": "a", "task": "digit"}}, "spec: task: found 'digit'"),
        ({}, "body.spec: Field required"),
        ({"spec": {}, "priority": 1e9}, "body.priority"),
        ({"spec": {}, "other": 1}, "body.other: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_body_is_one_line_that_names_the_place(service, client, body, detail):
    answer = client.post("/api/v1/studies", json=body)
    assert answer.status_code == 422
    assert detail in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]
    assert service.queue.jobs() == []


def test_a_name_that_is_taken_is_a_conflict_and_one_that_is_not_there_is_missing(client: TestClient) -> None:
    client.post("/api/v1/studies", json={"spec": spec_of("a")})
    assert client.post("/api/v1/studies", json={"spec": spec_of("a")}).status_code == 409
    assert client.post("/api/v1/studies/b/stop").status_code == 404
    assert client.get("/api/v1/studies/a/trials").status_code == 404  # it has not started


def test_nothing_of_another_project_is_told(service: TestedService, client: TestClient) -> None:
    service.studies("bob", "text").submit(spec_of("secret"))
    bob = service.queue.require("text.secret")
    for path in ("", "/trials", "/trials/0", "/report", "/events", "/trials/0/logs", "/model?point=0@1"):
        missing, other = client.get(f"/api/v1/studies/nope{path}"), client.get(f"/api/v1/studies/text.secret{path}")
        assert missing.status_code == other.status_code == 404
        assert "secret" not in other.text.replace("text.secret", "")
    for path in ("stop", "cancel", "resume", "priority", "enqueue"):
        body = {"priority": 0} if path == "priority" else {"params": {}} if path == "enqueue" else {}
        assert client.post(f"/api/v1/studies/text.secret/{path}", json=body).status_code == 404
    assert client.delete("/api/v1/studies/text.secret").status_code == 404
    assert client.get("/api/v1/queue").json() == []
    assert service.queue.require("text.secret") == bob


def test_watching_ends_when_the_study_has_ended(service: TestedService, client: TestClient) -> None:
    client.post("/api/v1/studies", json={"spec": spec_of("a")})
    service.studies().cancel("a")
    text = client.get("/api/v1/studies/a/events").text
    assert text.startswith("event: status\ndata: {")
    assert text.endswith("event: end\ndata: {}\n\n")


ENQUEUED = {"text": {"type": "categorical", "choices": ["1", "true", "1e3"]},
            "width": {"type": "float", "low": 1.0, "high": 2000.0}}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"text": "1"}, 200), ({"text": "true", "width": 1e3}, 200), ({"text": "1e3", "width": 7}, 200),
        ({"text": 1}, 422), ({"text": True}, 422), ({"text": None}, 422), ({"text": ["1"]}, 422),
        ({"width": "1e3"}, 422), ({"width": {"a": 1}}, 422), ({"width": True}, 422), ({"other": 1}, 422),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_enqueued_keeps_the_types_of_its_values(service, client, given, status):
    client.post("/api/v1/studies", json={"spec": spec_of("a", space=ENQUEUED)})
    spec, base_folder = service.queue.spec_of(service.queue.require("vision.a"))
    service.store.create_study("vision.a", spec, base_folder, 0.0)
    answer = client.post("/api/v1/studies/a/enqueue", json={"params": given})
    assert answer.status_code == status, answer.text
    if status == 200:
        queued = answer.json()["params"]
        assert {name: queued[name] for name in given} == given
        assert type(queued["text"]) is str


@pytest.mark.parametrize(
    ("key", "name"), [("project", ".."), ("project", "vision.a"), ("user", "../ann"), ("user", ".")]
)
def test_a_token_for_a_name_that_is_no_folder_is_refused(service: TestedService, key: str, name: str) -> None:
    headers = bearer(service.token(role="admin"))
    with TestClient(service.app(), headers=headers) as client:
        answer = client.post("/api/v1/tokens", json={"user": "ann", "project": "vision", key: name})
        assert (answer.status_code, len(client.get("/api/v1/tokens").json())) == (422, 1)
    assert answer.json()["detail"].startswith(f"body.{key}: ")


def test_figures_for_prometheus_tell_of_queue_and_slots(service: TestedService) -> None:
    service.studies().submit(spec_of("a"))
    service.studies().submit(spec_of("b"))
    worker = service.queue.register("w", device="cpu", slots=3)
    assert isinstance(service.queue.take_turn(worker, 3), Start)
    with TestClient(service.app(), headers=bearer(service.token(role="admin"))) as client:
        client.get("/api/v1/me")
        text = client.get("/metrics").text
    assert 'automl_slots{use="busy"} 1.0' in text
    assert 'automl_slots{use="free"} 2.0' in text
    assert 'automl_jobs{state="queued"} 1.0' in text
    assert 'automl_service_requests_total{method="GET",path="/api/v1/me",status="200"} 1.0' in text


def test_what_the_database_refuses_is_not_told_as_a_store_that_is_away(service: TestedService) -> None:
    """Who is told to come again in two seconds would do so for ever."""

    def refuse(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "INSERT INTO automl_jobs" in statement:
            raise DataError(statement, None, ValueError("value too long for type character varying(100)"))

    headers = bearer(service.token())
    sa.event.listen(service.store.engine, "before_cursor_execute", refuse)
    with TestClient(service.app(), raise_server_exceptions=False, headers=headers) as client:
        answer = client.post("/api/v1/studies", json={"spec": spec_of("a")})
    assert (answer.status_code, "Retry-After" in answer.headers) == (500, False)
    assert "does not answer" not in answer.text


def test_a_store_that_is_away_is_told_by_503(service: TestedService, client: TestClient) -> None:
    service.store.engine.dispose()
    (service.folder / "automl.db").unlink()
    (service.folder / "automl.db").mkdir()
    assert client.get("/health").status_code == 200
    answer = client.get("/ready")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
