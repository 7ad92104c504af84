"""A study that is followed over HTTP: for how long the service may be away."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from automl.remote.client import Patience, ServiceClient, UnreachableError
from automl.remote.following import Telling, _ended, statuses
from tests.support.http_servers import answered_by

HERE = ": still here\n\n"
END = "event: end\ndata: {}\n\n"


def status(state: str) -> str:
    return f"event: status\ndata: {json.dumps({'job': {'state': state}})}\n\n"


class Service:
    """A service, and a clock: each connection brings texts, and seconds that go by, or nothing where it is away."""

    def __init__(self, *connections: tuple[str | float, ...]) -> None:
        self.now, self.asked, self._connections = 1000.0, 0, iter(connections)

    def states(self) -> Iterator[str]:
        """Follow a study; yields the states that are told."""
        with self._served() as url:
            patience = Patience(clock=lambda: self.now, sleep=self._pass)
            for told in statuses(ServiceClient(url, None), "a", patience):
                yield told["job"]["state"]

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    @contextmanager
    def _served(self) -> Iterator[str]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                service.asked += 1
                parts = next(service._connections, ())
                self.send_response(200 if parts else 503)
                self.send_header("Connection", "close")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for part in parts:
                    if isinstance(part, str):
                        self.wfile.write(f"{len(part.encode()):x}\r\n{part}\r\n".encode())
                    else:
                        service._pass(part)
                if not parts:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        with answered_by(Handler) as url:
            yield url


def test_a_service_may_be_away_for_a_minute_then_who_follows_gives_up() -> None:
    away = [()] * 50
    service = Service((status("running"), HERE, 300.0, HERE), *away, (status("done"), END))
    assert list(service.states()) == ["running", "done"]
    service = Service((status("running"), 300.0))
    states = service.states()
    assert next(states) == "running"
    with pytest.raises(UnreachableError, match="cannot answer now"):
        next(states)
    assert service.asked == 61


def test_each_line_says_that_the_service_is_there() -> None:
    """Its store may be away, so that it has no status to tell."""
    away = [()] * 50
    service = Service((status("queued"),), *away, (HERE, 300.0), *away, (status("done"), END))
    assert list(service.states()) == ["queued", "done"]


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("stopped", 130)])
def test_what_confirms_has_no_study_and_ends_well_when_it_is_done(state: str, code: int) -> None:
    """More money lets a confirmation go on by `automl resume`, which follows it as a study."""
    status = {"job": {"study": "small:confirm-1", "state": state, "reason": ""}, "study": None}
    assert _ended(ServiceClient("http://127.0.0.1:1", None), status, Telling()) == code
