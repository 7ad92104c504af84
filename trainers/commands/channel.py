"""Questions of a program to its rank, and the answers: lines of JSON over a Unix socket.

    {"ask": "report", "epoch": 3, "metrics": {"val_error": 0.1}, "last": false}    {} or {"over": true}
    {"ask": "checkpoint", "epoch": 3}, {"ask": "resume"}                           {"folder": "..."} or {"folder": null}

An answer {"error": "..."} rejects the question. The program's side is `automl.inside_trial`.
"""

import json
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_LONGEST_LINE_BYTES = 2**20
_ASKS = ("report", "checkpoint", "resume", "heartbeat")


@dataclass(kw_only=True, slots=True, eq=False)
class Question:
    """Question of a program to its rank."""

    ask: str
    epoch: int | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    last: bool = False
    _given: threading.Event = field(default_factory=threading.Event)
    _answer: dict[str, object] = field(default_factory=dict)

    def answer(self, **answer: object) -> None:
        """Answer the question; only the first answer counts."""
        if not self._given.is_set():
            self._answer = answer
            self._given.set()

    def wait(self) -> dict[str, object]:
        """Wait for the answer, and return it."""
        self._given.wait()
        return self._answer


class Channel:
    """Serves the questions of one program over a socket."""

    def __init__(self, path: str, on_question: Callable[[Question], None]) -> None:
        self._on_question, self._is_closed = on_question, False
        self._open: set[Question] = set()
        self._changing = threading.Lock()
        self._server = _Server(path, _Connection)
        self._server.on_question = self._take
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="channel", daemon=True).start()

    def _take(self, question: Question) -> dict[str, object]:
        with self._changing:
            self._open.add(question)
            if self._is_closed:
                question.answer(over=True)
            else:
                self._on_question(question)
        answer = question.wait()
        self._open.discard(question)
        return answer

    def close(self) -> None:
        """Answer all questions with "the trial is over". Keeps the socket's file as a sign of a finished trial."""
        with self._changing:
            self._is_closed = True
            for question in list(self._open):
                question.answer(over=True)
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    on_question: Callable[[Question], dict[str, object]]


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            while line := self.rfile.readline(_LONGEST_LINE_BYTES):
                self.wfile.write(json.dumps(self._answer_to(line)).encode() + b"\n")

    def _answer_to(self, line: bytes) -> dict[str, object]:
        try:
            question = _question_in(json.loads(line))
        except ValueError as error:
            return {"error": str(error)}
        assert isinstance(self.server, _Server)  # noqa: S101 - it creates the handlers
        return self.server.on_question(question)


def _question_in(said: Any) -> Question:
    if not isinstance(said, dict) or said.get("ask") not in _ASKS:
        raise ValueError(f"automl got {said!r:.200}, allowed: a mapping whose key ask is one of {', '.join(_ASKS)}")
    metrics = said.get("metrics", {})
    if not isinstance(metrics, dict):
        raise ValueError(f"metrics: found {metrics!r:.200}, allowed: a mapping of names to numbers")
    return Question(ask=said["ask"], epoch=said.get("epoch"), metrics=metrics, last=bool(said.get("last")))
