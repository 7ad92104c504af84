"""The gate: no route answers without a token, and no page of another site acts in somebody's name."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
import sqlalchemy as sa
import yaml
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from automl.service.http import gate
from automl.service.http.context import ServiceContext
from automl.service.http.gate import COOKIE, LARGEST_BODY, OPEN_PATHS
from automl.service.http.service_app import bare_app, make_app
from automl.service.http.uvicorn_run import take_token
from search_spaces.messages import UserError
from studies.queueing import access_tokens
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from tests.support.service import TestedService, bearer, spec_of
from tests.support.waiting import wait_until


@pytest.fixture
def client(service: TestedService) -> Iterator[TestClient]:
    with TestClient(service.app(), base_url="http://team.example") as one:
        yield one


def routes(service: TestedService) -> list[tuple[str, str]]:
    found = [
        (method, route.path)
        for route in _all_routes(bare_app(service.context))
        for method in sorted(getattr(route, "methods", None) or {"GET"})
    ]
    assert ("POST", "/api/v1/studies") in found
    return found


def _all_routes(app: Any) -> list[Any]:
    found = []
    for route in app.routes:
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        found += [route] if inner is None or isinstance(route, APIRoute) else _all_routes(inner)
    return found


@pytest.mark.medium
def test_no_route_answers_without_a_token(service: TestedService, client: TestClient) -> None:
    """Each route of the application itself, mounted ones too; paths that nobody knows as well."""
    token = service.token(role="admin")
    asked = [*routes(service), ("GET", "/nowhere"), ("POST", "/api/v1/studies/../me"), ("GET", "/openapi.json")]
    for method, path in asked:
        concrete = path.replace("{name}", "a").replace("{trial}", "0").replace("{token_id}", "1")
        concrete = concrete.replace("{kind}", "user")
        for headers in ({}, bearer("automl_wrong"), {"Authorization": "Basic x"}, {"Cookie": f"{COOKIE}=wrong"}):
            answer = client.request(method, concrete, headers=headers)
            expected = {200, 401, 405, 503} if path in OPEN_PATHS else {401}
            assert answer.status_code in expected, (method, path, headers, answer.status_code)
    assert client.get("/api/v1/me", headers=bearer(token)).json()["role"] == "admin"


def test_a_browser_is_led_to_the_login(client: TestClient) -> None:
    answer = client.get("/api/v1/me", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


ONE = "one-token-of-an-admin"


@pytest.mark.parametrize(("text", "problem"), [
    (f"{ONE}\nand-that-of-another\n", ".*token has 2 words. It must hold only an admin's token"),
    ("too-short", "found a token of 9 characters, allowed: at least 16 printable ASCII"),
    ("mit-ümlaut-und-lang", "found a token of 19 characters, allowed: at least 16 printable ASCII"),
])  # fmt: skip
def test_a_file_with_more_than_one_token_locks_nobody_out(service: TestedService, text: str, problem: str) -> None:
    file = service.folder / "token"
    file.write_text(text)
    with pytest.raises(UserError, match=f"^--token-file: {problem}"):
        take_token(service.context, file)
    file.write_text(f"{ONE}\n")
    take_token(service.context, file)
    identity = access_tokens.identify(service.store, ONE)
    assert identity.is_admin


def test_a_revoked_token_is_refused_at_once(service: TestedService, client: TestClient) -> None:
    admin, token = service.token("root", "ops", "admin"), service.token()
    assert client.get("/api/v1/me", headers=bearer(token)).status_code == 200
    mine = next(line for line in client.get("/api/v1/tokens", headers=bearer(admin)).json() if line["user"] == "ann")
    assert client.delete(f"/api/v1/tokens/{mine['id']}", headers=bearer(admin)).status_code == 200
    assert client.get("/api/v1/me", headers=bearer(token)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://team.example"}, 202), ({}, 202), ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403), ({"Origin": "http://["}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 202),
    ],
)  # fmt: skip
def test_a_cookie_acts_for_own_pages_only(service, client, headers, status):
    client.cookies.set(COOKIE, service.session())
    answer = client.post("/api/v1/studies", json={"spec": spec_of("a")}, headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("authorization", ["x", "Basic YTpi", "Bearer automl_wrong", "Bearer"])
@pytest.mark.parametrize("needs_token", [True, False])
def test_only_a_valid_token_in_the_header_lets_another_site_in(service, authorization, needs_token):
    """Programs send no Origin that is theirs; browsers send cookies, and reach loopback, from any page."""
    headers = {"Origin": "http://evil.example", "Authorization": authorization}
    spec = {"spec": spec_of("a")}
    with TestClient(service.app(needs_token=needs_token), base_url="http://127.0.0.1") as client:
        client.cookies.set(COOKIE, service.session())
        assert client.post("/api/v1/studies", json=spec, headers=headers).status_code == 403
        assert service.queue.jobs() == []
        valid = {"Origin": "http://evil.example"} | bearer(service.token())
        assert client.post("/api/v1/studies", json=spec, headers=valid).status_code == (202 if needs_token else 403)


def test_the_first_token_ends_the_open_mode_of_a_running_service_and_its_end_does_not_begin_it_again(
    service: TestedService,
) -> None:
    def statuses() -> tuple[int, int]:
        found = [client.get("/api/v1/me").status_code for client in (running, anew)]
        return found[0], found[1]

    def application() -> TestClient:
        return TestClient(make_app(service.context, host="127.0.0.1"), base_url="http://127.0.0.1")

    with application() as running:
        assert running.get("/api/v1/me").json()["role"] == "admin"
        service.token()
        with application() as anew:
            assert statuses() == (401, 401)
        with service.store.engine.begin() as connection:
            connection.execute(sa.update(t.tokens).values(expires_at=1.0))
        with application() as anew:
            assert statuses() == (401, 401)
        with TestClient(make_app(service.context, is_open=True, host="127.0.0.1"), base_url="http://localhost") as anew:
            assert statuses() == (401, 200)


def test_logging_out_ends_the_session_and_its_event_streams(service: TestedService, client: TestClient) -> None:
    token = service.token()
    assert client.post("/login", data={"token": token}, follow_redirects=False).status_code == 303
    cookie = client.cookies[COOKIE]
    identity = access_tokens.identify_session(service.store, cookie)
    assert client.get("/api/v1/me").status_code == 200
    assert token not in cookie
    assert access_tokens.lasts(service.store, identity)
    client.post("/logout")
    client.cookies.set(COOKIE, cookie)
    assert client.get("/api/v1/me").status_code == 401
    assert not access_tokens.lasts(service.store, identity)
    assert client.get("/api/v1/me", headers=bearer(token)).status_code == 200, "the token itself stays valid"


def test_a_session_ends_with_its_token_or_by_itself(service: TestedService, client: TestClient) -> None:
    token, line = access_tokens.create(service.store, name="a", user="a", project="a", role="viewer", days=None)
    for ending in (lambda: access_tokens.revoke(service.store, line.id), lambda: None):
        seconds = 60.0 if access_tokens.identify(service.store, token) else 0.0
        session = access_tokens.begin_session(service.store, token, seconds)
        ending()
        client.cookies.set(COOKIE, str(session))
        assert client.get("/api/v1/me").status_code == 401


def test_the_last_admin_keeps_the_token_unless_the_operator_insists(service: TestedService, client: TestClient) -> None:
    first, second = service.token("root", "ops", "admin"), service.token("root", "ops", "admin")
    admins = [line.id for line in access_tokens.listed(service.store) if line.role == "admin"]
    assert client.delete(f"/api/v1/tokens/{admins[0]}", headers=bearer(second)).status_code == 200
    refused = client.delete(f"/api/v1/tokens/{admins[1]}", headers=bearer(second))
    assert (refused.status_code, "--force" in refused.json()["detail"]) == (409, True)
    assert client.post(f"/tokens/{admins[1]}/revoke", headers=bearer(second)).status_code == 409
    assert not access_tokens.revoke(service.store, admins[1], force=True).is_valid
    assert client.get("/api/v1/me", headers=bearer(first)).status_code == 401


def test_every_answer_has_the_safe_headers_and_browsers_get_pages(service: TestedService, client: TestClient) -> None:
    large = {"Content-Length": str(LARGEST_BODY + 1)}
    client.cookies.set(COOKIE, service.session())
    refusals = [("POST", "/logout", {"Origin": "http://evil.example"}, 403), ("POST", "/submit", large, 413),
                ("GET", "/metrics", {}, 403), ("POST", "/nothing", {"Cookie": ""}, 401)]  # fmt: skip
    for method, path, headers, status in refusals:
        for accept, kind in (("text/html,*/*", "text/html"), ("*/*", "application/json")):
            answer = client.request(method, path, headers={"Accept": accept, **headers})
            assert answer.status_code == status, (path, answer.text)
            assert answer.headers["content-type"].startswith(kind), path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("usd", [True, False])
def test_true_is_no_amount_of_money(service: TestedService, client: TestClient, usd: bool) -> None:
    headers = bearer(service.token(role="admin"))
    asked = {"/api/v1/accounts/user/ann": {"usd": usd}, "/api/v1/studies/a/confirm": {"usd": usd},
             "/api/v1/trainings": {"name": "a", "task": "digits", "usd": usd}}  # fmt: skip
    for path, body in asked.items():
        answer = client.request("PUT" if "accounts" in path else "POST", path, json=body, headers=headers)
        assert (answer.status_code, "usd: found " in answer.text) == (422, True), answer.text


def test_a_store_that_hangs_is_waited_for_once(
    service: TestedService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request would otherwise hold a thread until the database answers."""
    answers, headers = threading.Event(), bearer(service.token())
    real = access_tokens.identify

    def hanging(*given: Any) -> Any:
        answers.wait(30.0)
        return real(*given)

    monkeypatch.setattr(gate, "identify", hanging)
    monkeypatch.setattr(gate, "STORE_SECONDS", 0.1)
    began = time.monotonic()
    for _ in range(50):
        refused = client.get("/api/v1/me", headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert client.get("/health").status_code == 200
    assert time.monotonic() - began < 5.0
    answers.set()
    while client.get("/api/v1/me", headers=headers).status_code != 200:
        assert time.monotonic() - began < 20.0


def test_a_frozen_postgresql_gives_503_at_once_after_the_first_wait(
    postgres_url: str, service: TestedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "STORE_SECONDS", 1.0)
    store = Store(postgres_url)
    token, _ = access_tokens.create(store, name="a", user="ann", project="a", role="viewer", days=None)
    context = ServiceContext(store=store, policy=service.policy)
    with TestClient(make_app(context, host="127.0.0.1"), headers=bearer(token)) as client:
        assert client.get("/api/v1/me").status_code == 200
        with store.snapshot() as connection:
            master = psutil.Process(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()).parent()
        assert master is not None
        frozen = [master, *master.children(recursive=True)]
        for process in frozen:
            process.suspend()
        try:
            assert client.get("/api/v1/me").status_code == 503
            began = time.monotonic()
            assert {client.get("/api/v1/studies").status_code for _ in range(60)} == {503}
            assert client.get("/health").status_code == 200
            assert time.monotonic() - began < 10.0
        finally:
            for process in frozen:
                process.resume()
        wait_until(lambda: client.get("/api/v1/me").status_code == 200, "the service answers again")
    store.close()


def test_without_tokens_this_machine_is_an_admin_by_its_own_names(service: TestedService) -> None:
    with TestClient(service.app(needs_token=False), base_url="http://127.0.0.1:8765") as client:
        assert client.get("/api/v1/me").json()["role"] == "admin"
        assert client.get("/api/v1/me", headers={"Host": "localhost:8765"}).status_code == 200
        assert client.get("/api/v1/me", headers={"Host": "rebound.example"}).status_code == 403
        assert client.post("/api/v1/studies", json={"spec": spec_of("a")}).json()["study"] == "a"


def test_large_bodies_are_refused_whether_they_say_so_or_not(service: TestedService, client: TestClient) -> None:
    headers = bearer(service.token())
    body = b'{"spec": "' + b"x" * LARGEST_BODY + b'"}'
    assert client.post("/api/v1/studies", content=body, headers=headers).status_code == 413
    chunks = (body[at : at + 65536] for at in range(0, len(body), 65536))
    assert client.post("/api/v1/studies", content=chunks, headers=headers).status_code == 413


def test_a_form_whose_connection_breaks_is_not_acted_on(service: TestedService) -> None:
    """Its last field says that it is a check; without it the study would be queued."""
    form = urlencode({"how": "yaml", "yaml": yaml.safe_dump(spec_of("a"))}).encode()
    messages = [{"type": "http.request", "body": form, "more_body": True}, {"type": "http.disconnect"}]
    headers = [(b"authorization", f"Bearer {service.token()}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/submit", "query_string": b"", "headers": headers}
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(service.app()(scope, receive, send))
    assert (service.queue.jobs(), sent) == ([], [])


def test_members_reach_nothing_of_an_admin(service: TestedService, client: TestClient) -> None:
    headers = bearer(service.token())
    for method, path in (("GET", "/metrics"), ("GET", "/api/v1/tokens"), ("POST", "/api/v1/tokens")):
        answer = client.request(method, path, headers=headers, json={"user": "x", "project": "y"})
        assert answer.status_code == 403, path
