"""What the service answers to programs that mean no good: never a 5xx, nothing of others, and nothing is written."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.storage.schema import tables as t
from tests.support import optional
from tests.support.service import TestedService, bearer, spec_of

SECRET = "hidden-from-ann"
RUN = (
    "run", "--checks", "not_a_server_error,status_code_conformance", "--mode", "all", "--phases",
    "examples,coverage,fuzzing", "--seed", "1", "--suppress-health-check", "all", "--no-shrink", "--warnings", "off",
    "--request-timeout", "60",
)  # fmt: skip


@pytest.fixture
def address(service: TestedService) -> Iterator[str]:
    """Address of a service in a process of its own, which has a study of another project."""
    service.studies("bob", "text").submit(spec_of(SECRET))
    service.token(role="viewer")  # with a token in the store, each request needs one
    with serving(service) as address:
        yield address


@contextmanager
def serving(service: TestedService) -> Iterator[str]:
    """Serve in a process of its own, which says nothing of an error of ours to the end."""
    command = [sys.executable, "-m", "automl", "serve", "--port", "0", "--artifacts", str(service.folder / "artifacts")]
    environment = {**os.environ, "AUTOML_STORE": service.store.url}
    log = service.folder / "service.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=service.folder, env=environment, stderr=stream)
        try:
            yield _address(log)
            assert process.poll() is None, log.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60.0) == 0
    errors = [line for line in log.read_text().splitlines() if "Traceback" in line]
    assert not errors, errors[0][-2000:]  # pytest takes minutes to compare long texts


def _address(log: Path) -> str:
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("automl service: "):
                return line.split()[2]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def check_routes(address: str, folder: Path, *arguments: str) -> None:
    """Have schemathesis ask the routes of a service in ways that its OpenAPI document allows, and in others."""
    if importlib.util.find_spec("schemathesis") is None:  # importing it would change hypothesis for all other tests
        optional.missing("schemathesis", "pip install -c constraints.txt schemathesis")
    command = [sys.executable, "-m", "schemathesis.cli", *RUN, *arguments, f"{address}/openapi.json"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.large
@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_schemathesis_finds_no_server_error(service: TestedService, address: str, examples: int) -> None:
    who = f"Authorization: {bearer(service.token(role='admin'))['Authorization']}"
    check_routes(address, service.folder, "--max-examples", str(examples), "--header", who,
                 "--exclude-path-regex", "tokens/|check$")  # fmt: skip  # see the next test


@pytest.mark.large
def test_schemathesis_finds_none_in_tokens_and_checks_either(service: TestedService) -> None:
    """Without a token of its own, which it would revoke; checks take seconds each."""
    with serving(service) as address:
        check_routes(address, service.folder, "--max-examples", "3", "--include-path-regex", "tokens|check$")


@pytest.mark.large
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_requests_leak_and_write_nothing(service: TestedService, address: str, count: int) -> None:
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
