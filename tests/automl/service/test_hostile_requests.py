"""What the service answers to programs that mean no good: never a 5xx, nothing of others, and nothing is written."""

import http.client
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from studies.storage.schema import tables as t
from tests.support.served import check_routes, served_service
from tests.support.service import TestedService, bearer, spec_of

SECRET = "hidden-from-ann"
CHECKS = "not_a_server_error,status_code_conformance"


@pytest.fixture
def address(service: TestedService) -> Iterator[str]:
    """Address of a service in a process of its own, which has a study of another project."""
    service.studies("bob", "text").submit(spec_of(SECRET))
    service.token(role="viewer")  # with a token in the store, each request needs one
    with served_service(service.folder) as address:
        yield address


@pytest.mark.large
@pytest.mark.parametrize(("count", "examples"), [(300, 3), pytest.param(10_000, 60, marks=pytest.mark.slow)])
def test_hostile_requests_leak_and_write_nothing_and_schemathesis_finds_no_server_error(
    service: TestedService, address: str, count: int, examples: int
) -> None:
    chance, token = random.Random(count), service.token()
    before, unanswered = _kept(service), 0
    host, port = address.removeprefix("http://").split(":")
    for _ in range(count):
        connection = http.client.HTTPConnection(host, int(port), timeout=60.0)
        try:
            method, path, body, headers = _hostile(chance, token)
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            assert answer.status < 500, (method, path, body, headers, text)
            assert SECRET not in text.replace(f"text.{SECRET}", ""), (method, path, text)  # what was asked for
        except (ConnectionError, http.client.HTTPException):
            unanswered += 1
        finally:
            connection.close()
    assert _kept(service) == before
    assert unanswered <= 0.02 * count, "what is no request at all may be refused without an answer"
    who = f"Authorization: {bearer(service.token(role='admin'))['Authorization']}"
    check_routes(address, service.folder, "--max-examples", str(examples), "--header", who,
                 "--exclude-path-regex", "tokens/|check$", checks=CHECKS)  # fmt: skip  # see the next test


@pytest.mark.large
def test_schemathesis_finds_none_in_tokens_and_checks_either(service: TestedService) -> None:
    """Without a token of its own, which it would revoke; checks take seconds each."""
    with served_service(service.folder) as address:
        check_routes(address, service.folder, "--max-examples", "3", "--include-path-regex", "tokens|check$",
                     checks=CHECKS)  # fmt: skip


def _kept(service: TestedService) -> tuple[dict[str, list[Any]], set[str]]:
    """All rows of the store, and the names of all files but those of the store and of the log."""
    with service.store.snapshot() as connection:
        rows = {
            one.name: [tuple(row) for row in connection.execute(sa.select(one))] for one in t.metadata.sorted_tables
        }
    files = {str(path.relative_to(service.folder)) for path in service.folder.rglob("*") if path.is_file()}
    return rows, {name for name in files if ".db" not in name}


def _nested(levels: int) -> list[Any]:
    """An empty list in so many others."""
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


_NAMES = ["text." + SECRET, "..", "%2e%2e%2f", "a%00b", "%ff%fe", "'; drop table automl_jobs;--", "a" * 3000, "{{7*7}}",
          "<script>", "0", "-1", "9" * 40]  # fmt: skip
_PATHS = ["/api/v1/studies/{}", "/api/v1/studies/{}/stop", "/api/v1/studies/{}/trials/{}", "/api/v1/studies/{}/report",
          "/api/v1/studies/{}/model?point={}&place={}", "/api/v1/studies/{}/trials/{}/logs?rank={}",
          "/api/v1/accounts/user/{}", "/api/v1/tokens/{}", "/{}",
          "/api/v1/studies/{}/resume", "/api/v1/studies/{}/priority", "/api/v1/studies", "/api/v1/trainings",
          "/api/v1/uploads?name={}", "/metrics", "/openapi.json"]  # fmt: skip
_BODIES: list[Any] = [
    {}, [], None, {"spec": {}}, {"spec": "a: &a [*a]"}, {"spec": "!!python/object/apply:os.system [id]"},
    {"spec": {"study": "x", "task": "os:system"}}, {"spec": {"study": "../x", "task": "digits"}},
    {"spec": {"study": "x", "task": "tabular", "task_options": {"train": "/etc/passwd"}}},
    {"spec": {"study": "x", "task": "digits", "store": "postgresql://evil/x"}, "code": "../.."},
    {"overrides": ["budget.usd=NaN"]}, {"priority": 10**30}, {"usd": 1e308}, {"params": {"a": {"b": ["c"] * 50}}},
    {"spec": {"study": "x" * 100_000, "task": "digits"}}, {"spec": "x: " + "[" * 900 + "]" * 900},
    {"spec": {"study": "deep", "task": "digits", "task_options": {"a": _nested(400)}}}, {"params": {"a": _nested(900)}},
]  # fmt: skip


def _hostile(chance: random.Random, token: str) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that somebody who may ask something might send to get more."""
    path = chance.choice(_PATHS)
    while "{}" in path:
        path = path.replace("{}", chance.choice(_NAMES).replace(" ", "%20"), 1)
    body = json.dumps(chance.choice(_BODIES)).encode()
    if chance.random() < 0.2:
        body = chance.randbytes(chance.randrange(200))
    auth = chance.choice([f"Bearer {token}", f"Bearer {token}", f"Bearer {token}x", "Bearer", "Basic YTpi", ""])
    headers = {"Host": chance.choice(["127.0.0.1", "evil.example", ""]), "Authorization": auth,
               "Content-Type": chance.choice(["application/json", "text/plain", "multipart/form-data; boundary=x"]),
               "Cookie": chance.choice(["", "automl_token=x", "a=\xff; b", "automl_token=" + "y" * 2000]),
               "Origin": chance.choice(["", "http://evil.example", "null"])}  # fmt: skip
    return chance.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]), path, body, headers
