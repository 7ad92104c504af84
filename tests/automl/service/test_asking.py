"""Questions in processes of their own: few at a time, and nothing stays of one that takes too long."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from fastapi.testclient import TestClient

from automl.service import subprocess_questions
from automl.service.http_errors import BusyError, ConflictError
from automl.service.subprocess_questions import CHECK, MOST_TAKEN, answer_of
from search_spaces.messages import RunError, UserError
from studies.storage.schema.engine import StoreAwayError
from tests.support.service import TestedService, bearer, spec_of
from tests.support.waiting import is_gone, wait_until

SLOW = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


@contextmanager
def others_at_work(number: int) -> Iterator[None]:
    """Let as many questions be worked out by others."""
    for _ in range(number):
        CHECK.places.acquire()
    try:
        yield
    finally:
        for _ in range(number):
            CHECK.places.release()


@pytest.mark.medium
def test_what_takes_too_long_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    (tmp_path / "slow_answer.py").write_text(SLOW)
    impatient = replace(CHECK, seconds=5.0)
    with pytest.raises(ConflictError, match="check: the task's code took longer"):
        answer_of("slow_answer", [str(tmp_path / "pid")], kind=impatient, PYTHONPATH=str(tmp_path))
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: is_gone(child))  # a killed process closes its files first, which is what `answer_of` waits for


@pytest.mark.medium
def test_a_check_beside_too_many_is_to_be_asked_again(service: TestedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_questions, "WAIT_SECONDS", 0.1)
    with TestClient(service.app(), headers=bearer(service.token())) as client:
        with others_at_work(CHECK.most):
            answer = client.post("/api/v1/studies/check", json={"spec": spec_of("a")})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
        assert answer.json()["detail"].startswith("check: 2 checks are at work, the most at once")
        answer = client.post("/api/v1/studies/check", json={"spec": spec_of("a")})
    assert answer.status_code == 200, answer.text
    assert {"study", "slots", "price", "first_params", "expected_cost"} <= answer.json().keys()
    assert service.queue.jobs() == []


TOLD = """
import os, sys
from automl.service.subprocess_questions import telling
from search_spaces.messages import RunError, UserError
from studies.storage.schema.engine import StoreAwayError

def ended(how):
    if how == "killed":
        os.kill(os.getpid(), 9)
    raise {"user": UserError, "run": RunError, "away": StoreAwayError, "crash": ValueError}[how]("this\\n  line")

with telling():
    ended(sys.argv[1])
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("user", UserError, "this line"), ("run", RunError, "this line"), ("away", StoreAwayError, "this line"),
        ("crash", UserError, "  line"),
        ("killed", UserError, "check: its process was ended by signal 9, perhaps for lack of memory"),
    ],
)  # fmt: skip
def test_an_error_keeps_its_kind_and_what_nobody_foresaw_is_logged(how, kind, words, tmp_path, capsys):
    (tmp_path / "told.py").write_text(TOLD)
    with pytest.raises(kind) as caught:
        answer_of("told", [how], PYTHONPATH=str(tmp_path))
    assert str(caught.value) == words
    assert ("a program has failed" in capsys.readouterr().err) == (how in {"crash", "killed"})


def test_questions_that_wait_hold_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_questions, "WAIT_SECONDS", 60.0)
    with others_at_work(CHECK.most):
        waiting = [threading.Thread(target=answer_of, args=("json.tool", ["--help"])) for _ in range(MOST_TAKEN)]
        monkeypatch.setattr(subprocess_questions, "_ended", lambda *_: (0, "{}", ""))
        for thread in waiting:
            thread.start()
        with pytest.raises(BusyError):  # at once: it does not wait
            answer_of("json.tool")
    for thread in waiting:
        thread.join(60.0)
    assert answer_of("json.tool") == {}


def test_the_service_lives_while_all_its_threads_are_taken(service: TestedService) -> None:
    scope = {"type": "http", "method": "GET", "path": "/health", "raw_path": b"/health", "query_string": b"",
             "headers": [(b"host", b"service")], "scheme": "http", "root_path": "", "http_version": "1.1"}  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        for number in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(number)
        with anyio.fail_after(10.0):
            await service.app()(scope, receive, send)

    anyio.run(ask)
    assert sent[0]["status"] == 200
