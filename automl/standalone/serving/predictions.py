"""Requests for predictions, whichever way they come: which model answers, its rows, and the reply.

`app` answers them in tasks of an ASGI application, `direct` without one.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..batches import Encoded
from .access import Headers
from .answer_log import AnswerLog
from .batching import Batcher
from .errors import RequestError
from .json_rows import encoded_rows, rows_in
from .replies import REQUEST_ID, Reply, json_reply
from .served import Served
from .settings import Settings
from .state import ServingState

KEYS: Mapping[str, str] = {"/predict": "row", "/predict/batch": "rows"}
"""The only key of a request's body, by path."""
AB_KEY = b"ab-key"
"""Name of the header whose value decides which of two models answers, so that a person meets one of them."""
LARGE_BODY = 32_768
"""Bodies of more bytes are read by a thread, so that the event loop goes on."""
_OK = 200
_ID = REQUEST_ID.encode()
_GIVEN_ID = re.compile(rb"[\w.:-]{1,200}")


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """A request whose model was chosen, and stays the same whatever is loaded meanwhile.

    Attributes:
        served: The model.
        role: Its role, champion or challenger.
        key: The only key of the body, "row" or "rows".
        request_id: The id that the client gave to its request, or a new one.
        started: When it came, in seconds of `time.perf_counter`.
    """

    served: Served
    role: str
    key: str
    request_id: str
    started: float


class Predictions:
    """What all ways to a prediction share.

    Args:
        settings: Limits.
        state: The models.
        batcher: Answers rows.
        answer_log: Keeps what was answered; None keeps nothing.
    """

    def __init__(
        self, settings: Settings, state: ServingState, batcher: Batcher, answer_log: AnswerLog | None = None
    ) -> None:
        self.batcher = batcher
        self._settings, self._state, self._answer_log = settings, state, answer_log
        self._new_id = random.Random()

    def asked(self, headers: Headers, key: str) -> Asked:
        """Return a request with its model.

        Args:
            headers: Names in small letters with the first value of each.
            key: "row" or "rows".

        Raises:
            RequestError: No model is loaded yet.
        """
        started = time.perf_counter()
        role, served = self._state.pick(headers.get(AB_KEY, b""))
        if served is None:
            raise RequestError(503, "the model is not loaded yet", 1)
        return Asked(served, role, key, self._id(headers.get(_ID, b"")), started)

    def rows(self, asked: Asked, body: bytes) -> list[Encoded]:
        """Return the rows of a request as the model's numbers.

        Raises:
            RequestError: They are not what the model takes.
        """
        return encoded_rows(rows_in(body, asked.key, self._settings.request_rows), asked.served.model.rows)

    def reply(self, asked: Asked, answers: Sequence[dict[str, Any]]) -> Reply:
        """Return the reply with the answers to its rows, and keep those that are sent where that is asked for."""
        version = asked.served.version
        content = answers[0] | {"model": version} if asked.key == "row" else {"answers": answers, "model": version}
        reply = json_reply(content, headers=((REQUEST_ID, asked.request_id),))
        if self._answer_log is not None and reply.status == _OK:
            self._note(self._answer_log, asked, answers)
        return reply

    def too_late(self) -> RequestError:
        """Return what a request gets that was not answered in time."""
        return RequestError(503, f"there was no answer in {self._settings.timeout_seconds:g} seconds", 1)

    def _id(self, given: bytes) -> str:
        return given.decode() if _GIVEN_ID.fullmatch(given) else f"{self._new_id.getrandbits(128):032x}"

    @staticmethod
    def _note(log: AnswerLog, asked: Asked, answers: Sequence[dict[str, Any]]) -> None:
        one, count = asked.request_id, len(answers)
        ids = [one] if asked.key == "row" else [f"{one}/{number + 1}" for number in range(count)]
        took = time.perf_counter() - asked.started
        log.note(dict(zip(ids, answers, strict=True)), version=asked.served.version, role=asked.role, seconds=took)
