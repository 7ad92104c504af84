"""The gate: no route answers without a token, and no page of another site acts in somebody's name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from automl.service.http.gate import COOKIE, LARGEST_BODY, OPEN_PATHS
from automl.service.http.service_app import bare_app
from automl.service.http.uvicorn_run import take_token
from search_spaces.user_errors import UserError
from studies.queueing import access_tokens
from tests.support.service import TestedService, bearer, spec_of


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
    client.cookies.set(COOKIE, service.token())
    answer = client.post("/api/v1/studies", json={"spec": spec_of("a")}, headers=headers)
    assert answer.status_code == status, answer.text


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
