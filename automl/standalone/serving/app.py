"""The HTTP interface: rows in, answers out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from .access import Gate, brings_token
from .batching import Batcher
from .errors import RequestError
from .json_rows import encoded_rows, rows_in
from .metrics import CONTENT_TYPE, Metrics, exposition
from .schema import openapi_of
from .served import Served
from .settings import Settings
from .state import CHALLENGER, CHAMPION, ServingState

_LARGE_BODY = 32_768
"""Bodies of more bytes are read by a thread, so that the event loop goes on."""


def make_app(settings: Settings, state: ServingState, batcher: Batcher, metrics: Metrics) -> Gate:
    """Return the application.

    Args:
        settings: Limits and the token.
        state: The models.
        batcher: Answers rows.
        metrics: Told of each request.
    """
    app = FastAPI(title="A trained model", version="1", docs_url="/docs", redoc_url=None)
    endpoints = _Endpoints(settings, state, batcher)
    app.add_route("/", endpoints.root, methods=["GET"])
    app.add_route("/health", endpoints.health, methods=["GET"])
    app.add_route("/metrics", endpoints.metrics, methods=["GET"])
    app.add_route("/predict", endpoints.predict, methods=["POST"])
    app.add_route("/predict/batch", endpoints.predict_batch, methods=["POST"])
    app.add_exception_handler(RequestError, _told)
    app.add_exception_handler(HTTPException, _told_by_starlette)
    app.add_exception_handler(Exception, _failed)
    app.openapi = lambda: openapi_of(settings, state)  # type: ignore[method-assign]
    return Gate(app, settings, metrics)


class _Endpoints:
    """What answers each path."""

    def __init__(self, settings: Settings, state: ServingState, batcher: Batcher) -> None:
        self._settings, self._state, self._batcher = settings, state, batcher

    async def root(self, _request: Request) -> Response:
        """Lead to the documentation."""
        return RedirectResponse("docs")

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
        served, answers = await self._answers(request, "row")
        return _json(answers[0] | {"model": served.version})

    async def predict_batch(self, request: Request) -> Response:
        """Answer a list of rows."""
        served, answers = await self._answers(request, "rows")
        return _json({"answers": answers, "model": served.version})

    async def _answers(self, request: Request, key: str) -> tuple[Served, list[dict[str, Any]]]:
        served = self._state.pick()
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
                raise RequestError(408, f"body: found {len(body)} bytes in {seconds}, and no end") from None
            raise RequestError(503, f"there was no answer in {seconds}", 1) from None
        return served, answers

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
    async for part in request.stream():
        parts += part
        if len(parts) > most:
            raise _too_large(f"more than {most}", most)
    return bytes(parts)


def _too_large(found: str, most: int) -> RequestError:
    return RequestError(413, f"body: found {found} bytes, allowed: {most}")


def _json(content: Any, status: int = 200, retry_seconds: int | None = None) -> Response:
    try:
        body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        message = "rows: found numbers so large that the model's answer is not finite"
        return _json({"detail": message}, 422)
    headers = {} if retry_seconds is None else {"retry-after": str(retry_seconds)}
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
