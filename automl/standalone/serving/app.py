"""The HTTP interface: rows in, answers out."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from . import docs_page
from .access import Gate, brings_token
from .answer_log import AnswerLog
from .batching import Batcher
from .errors import RequestError
from .json_rows import encoded_rows, rows_in
from .metrics import CONTENT_TYPE, Metrics, exposition
from .schema import openapi_of
from .served import Served
from .settings import Settings
from .state import CHALLENGER, CHAMPION, ServingState

REQUEST_ID = "x-request-id"
AB_KEY = "ab-key"
"""Name of the header whose value decides which of two models answers, so that a person meets one of them."""
_GIVEN_ID = re.compile(r"[\w.:-]{1,200}", re.ASCII)
_LARGE_BODY = 32_768
"""Bodies of more bytes are read by a thread, so that the event loop goes on."""


def make_app(
    settings: Settings, state: ServingState, batcher: Batcher, metrics: Metrics, answers: AnswerLog | None = None
) -> Gate:
    """Return the application.

    Args:
        settings: Limits and the token.
        state: The models.
        batcher: Answers rows.
        metrics: Told of each request.
        answers: Keeps what was answered; None keeps nothing.
    """
    app = FastAPI(title="A trained model", version="1", openapi_url=None, docs_url=None, redoc_url=None)
    endpoints = _Endpoints(settings, state, batcher, answers)
    app.add_route("/", endpoints.root, methods=["GET"])
    app.add_route("/docs", endpoints.docs, methods=["GET"])
    app.add_route("/openapi.json", endpoints.openapi, methods=["GET"])
    app.add_route("/health", endpoints.health, methods=["GET"])
    app.add_route("/metrics", endpoints.metrics, methods=["GET"])
    app.add_route("/predict", endpoints.predict, methods=["POST"])
    app.add_route("/predict/batch", endpoints.predict_batch, methods=["POST"])
    app.add_exception_handler(RequestError, _told)
    app.add_exception_handler(HTTPException, _told_by_starlette)
    app.add_exception_handler(Exception, _failed)
    return Gate(app, settings, metrics)


class _Endpoints:
    """What answers each path."""

    def __init__(self, settings: Settings, state: ServingState, batcher: Batcher, answer_log: AnswerLog | None) -> None:
        self._settings, self._state, self._batcher = settings, state, batcher
        self._answer_log = answer_log

    async def root(self, _request: Request) -> Response:
        """Lead to the documentation."""
        return RedirectResponse("docs")

    async def docs(self, _request: Request) -> Response:
        """Return the page on which requests can be tried."""
        return HTMLResponse(docs_page.PAGE, headers=docs_page.HEADERS)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document; only who may ask for answers is told the model's columns and labels."""
        is_known = brings_token(request.scope, self._settings.token)
        return _json(openapi_of(self._settings, self._state, tells_model=is_known))

    async def health(self, request: Request) -> Response:
        """Say whether requests are answered; only who may ask for answers is told why a model does not load."""
        state = self._state
        is_ready = CHAMPION in state.models and not state.is_draining
        status = "draining" if state.is_draining else "ok" if CHAMPION in state.models else "loading"
        problem: str | None = state.problem or None
        if problem and not brings_token(request.scope, self._settings.token):
            problem = "the newest model does not load; the server's log says why"
        versions = state.versions()
        content = {
            "status": status,
            "model_loaded": CHAMPION in state.models,
            "model": versions.get(CHAMPION),
            "challenger": versions.get(CHALLENGER),
            "problem": problem,
        }
        return _json(content, 200 if is_ready else 503, None if is_ready else 1)

    async def metrics(self, _request: Request) -> Response:
        """Return the figures of all workers."""
        return Response(await asyncio.to_thread(exposition), headers={"content-type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Answer one row."""
        served, answers, request_id = await self._answers(request, "row")
        return _json(answers[0] | {"model": served.version}, request_id=request_id)

    async def predict_batch(self, request: Request) -> Response:
        """Answer a list of rows."""
        served, answers, request_id = await self._answers(request, "rows")
        return _json({"answers": answers, "model": served.version}, request_id=request_id)

    async def _answers(self, request: Request, key: str) -> tuple[Served, list[dict[str, Any]], str]:
        """Return the model that has answered, the answers, and the id of the request."""
        started = time.perf_counter()
        request_id = _request_id(request)
        role, served = self._state.pick(request.headers.get(AB_KEY, "").encode("latin-1"))
        if served is None:
            raise RequestError(503, "the model is not loaded yet", 1)
        body = b""
        is_read = False
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                body = await _body(request, self._settings.body_bytes)
                is_read = True
                rows = await self._encoded(served, body, key)
                answers = await self._batcher.answers(served, rows)
        except TimeoutError:
            seconds = f"{self._settings.timeout_seconds:g} seconds"
            if not is_read:
                raise RequestError(408, f"body: found no end in {seconds}") from None
            raise RequestError(503, f"there was no answer in {seconds}", 1) from None
        if self._answer_log is not None:
            ids = [request_id] if key == "row" else [f"{request_id}/{number + 1}" for number in range(len(answers))]
            by_id = dict(zip(ids, answers, strict=True))
            took = time.perf_counter() - started
            self._answer_log.note(by_id, version=served.version, role=role, seconds=took)
        return served, answers, request_id

    async def _encoded(self, served: Served, body: bytes, key: str) -> list[Any]:
        def encode() -> list[Any]:
            return encoded_rows(rows_in(body, key, self._settings.request_rows), served.model.rows)

        is_slow = len(body) > _LARGE_BODY or served.model.rows.kind == "image"
        return await asyncio.to_thread(encode) if is_slow else encode()


async def _body(request: Request, most: int) -> bytes:
    """Return the body of a request; one that is too large is refused before it is in the memory."""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > most:
        raise _too_large(told, most)
    parts = bytearray()
    try:
        async for part in request.stream():
            parts += part
            if len(parts) > most:
                raise _too_large(f"more than {most}", most)
    except ClientDisconnect:
        raise RequestError(400, f"body: found its end after {len(parts)} bytes, before the request's") from None
    return bytes(parts)


def _too_large(found: str, most: int) -> RequestError:
    return RequestError(413, f"body: found {found} bytes, allowed: {most}")


def _request_id(request: Request) -> str:
    """Return the id that the client gave to its request, or a new one."""
    given = request.headers.get(REQUEST_ID, "")
    return given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex


def _json(
    content: Any, status: int = 200, retry_seconds: int | None = None, *, request_id: str | None = None
) -> Response:
    try:
        body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        message = "rows: found numbers so large that the model's answer is not finite"
        return _json({"detail": message}, 422)
    headers = {} if retry_seconds is None else {"retry-after": str(retry_seconds)}
    if request_id is not None:
        headers[REQUEST_ID] = request_id
    return Response(body, status, headers, "application/json")


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # noqa: S101 - what it is registered for
    return _json({"detail": str(error)}, error.status, error.retry_seconds)


async def _told_by_starlette(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    response = _json({"detail": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _failed(_request: Request, error: Exception) -> Response:
    return _json({"detail": f"the server failed: {type(error).__name__}"}, 500)
