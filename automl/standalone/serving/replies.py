"""What a request gets: status, headers and JSON, before any server has made bytes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .errors import RequestError
from .json_rows import UNPROCESSABLE

REQUEST_ID = "x-request-id"
_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
ReplyHeaders = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request gets.

    Attributes:
        status: HTTP status code.
        body: JSON.
        headers: Names and values of headers beside length and type.
    """

    status: int
    body: bytes
    headers: ReplyHeaders = ()


def json_reply(content: Any, status: int = 200, headers: ReplyHeaders = ()) -> Reply:
    """Return plain values as a reply; numbers that JSON does not have are never sent."""
    try:
        body = _ENCODE(content).encode()
    except ValueError:
        message = "rows: found numbers so large that the model's answer is not finite"
        return json_reply({"detail": message}, UNPROCESSABLE)
    return Reply(status, body, headers)


def refusal(error: RequestError) -> Reply:
    """Return what a request that is not answered gets."""
    headers = () if error.retry_seconds is None else (("retry-after", str(error.retry_seconds)),)
    return json_reply({"detail": str(error)}, error.status, headers)


def failure(error: Exception) -> Reply:
    """Return what a request gets on which the server itself has failed."""
    return json_reply({"detail": f"the server failed: {type(error).__name__}"}, 500)
