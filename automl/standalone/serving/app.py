"""The HTTP interface as an ASGI application."""

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ..batches import Encoded
from . import docs_page
from .access import Gate, brings_token, first_headers
from .batching import Batcher
from .errors import RequestError
from .json_rows import UNPROCESSABLE, encoded_rows, rows_in
from .metrics import CONTENT_TYPE, exposition
from .schema import openapi_of
from .served import Served
from .served_model import ServedModel
from .settings import Settings

_KEYS: Mapping[str, str] = {"/predict": "row", "/predict/batch": "rows"}  # the only key of the body, by path
_LARGE_BODY = 32_768  # images, and bodies above this many bytes, are parsed in a thread, to keep the event loop free
_BODIES_TOGETHER = 4
"""Bodies of the largest size in a worker's memory. Limits of queue and connections do not cover incoming bodies."""
_REQUEST_ID = "x-request-id"
_GIVEN_ID = re.compile(r"[\w.:-]{1,200}", re.ASCII)
_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def make_app(settings: Settings, model: ServedModel) -> Gate:
    """Return the application of a worker."""
    endpoints = _Endpoints(settings, model)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=endpoints.lifespan)
    for path in _KEYS:
        app.add_route(path, endpoints.predict, methods=["POST"])
    others = (endpoints.root, endpoints.docs, endpoints.openapi, endpoints.health, endpoints.metrics)
    for path, endpoint in zip(("/", "/docs", "/openapi.json", "/health", "/metrics"), others, strict=True):
        app.add_route(path, endpoint, methods=["GET"])
    app.add_exception_handler(RequestError, _told)
    app.add_exception_handler(HTTPException, _told_by_starlette)
    app.add_exception_handler(Exception, _failed)
    return Gate(app, settings, model.metrics)


class _Endpoints:
    def __init__(self, settings: Settings, model: ServedModel) -> None:
        self._settings, self._model = settings, model
        self._held_bytes = 0
        self._new_id = random.Random()

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Run the model's thread, and follow newer models."""
        settings = self._settings
        self._batcher = Batcher(
            batch_rows=settings.batch_rows, wait_seconds=settings.batch_wait_ms / 1000, queue_rows=settings.queue_rows,
            watcher=self._model.metrics,
            on_broken=lambda: os.kill(os.getpid(), signal.SIGTERM),  # gunicorn starts another worker
        )  # fmt: skip
        following = asyncio.create_task(self._model.follow())
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await asyncio.to_thread(self._batcher.close)

    async def root(self, _request: Request) -> Response:
        return RedirectResponse("docs")

    async def docs(self, _request: Request) -> Response:
        return HTMLResponse(docs_page.PAGE, headers=docs_page.HEADERS)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document. Only clients with the token see columns and labels."""
        served = self._model.served if self._is_known(request) else None
        return json_reply(openapi_of(self._settings, served))

    async def health(self, request: Request) -> Response:
        """Return the served model. Only clients with the token see the error of a failed reload."""
        problem = self._model.problem or None
        if problem and not self._is_known(request):
            problem = "the newest model does not load; the server's log says why"
        version = self._model.served.version
        return json_reply({"status": "ok", "model_loaded": True, "model": version, "problem": problem})

    async def metrics(self, _request: Request) -> Response:
        return Response(await asyncio.to_thread(exposition), headers={"content-type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Return predictions for a row or a list of rows, by path. All are by the same model."""
        served, key = self._model.served, _KEYS[request.scope["path"]]
        seconds = self._settings.timeout_seconds
        is_read = False
        try:
            async with asyncio.timeout(seconds), self._body(request) as body:
                is_read = True
                if served.model.rows.kind == "image" or len(body) > _LARGE_BODY:
                    rows = await asyncio.to_thread(self._rows, served, key, body)
                else:
                    rows = self._rows(served, key, body)
                answers = await self._batcher.answers(served, rows)
        except TimeoutError:
            if not is_read:
                raise RequestError(408, f"body: the request was still incomplete after {seconds:g} seconds") from None
            raise RequestError(503, f"no answer within {seconds:g} seconds. Try again", 1) from None
        content = answers[0] if key == "row" else {"answers": answers}
        given = request.headers.get(_REQUEST_ID, "")
        request_id = given if _GIVEN_ID.fullmatch(given) else f"{self._new_id.getrandbits(128):032x}"
        return json_reply(content | {"model": served.version}, headers={_REQUEST_ID: request_id})

    def _rows(self, served: Served, key: str, body: bytes) -> list[Encoded]:
        by = served.model.rows
        return encoded_rows(rows_in(body, key, self._settings.request_rows, by.kind), by)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the request's body. Its bytes count against a limit until the answer."""
        most = self._settings.body_bytes
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > most:
            raise RequestError(413, f"body: it has {told} bytes, but at most {most} are allowed")
        parts = bytearray()
        try:
            async for part in request.stream():
                parts += part
                self._held_bytes += len(part)
                if len(parts) > most:
                    raise RequestError(413, f"body: it has more than the allowed {most} bytes")
                if self._held_bytes > _BODIES_TOGETHER * most:
                    allowed = f"the limit is {_BODIES_TOGETHER * most}"
                    raise RequestError(
                        429, f"body: all open requests together have {self._held_bytes} bytes; {allowed}", 1
                    )
            yield bytes(parts)
        except ClientDisconnect:
            raise RequestError(
                400, f"body: the connection ended after {len(parts)} bytes, before the end of the request"
            ) from None
        finally:
            self._held_bytes -= len(parts)

    def _is_known(self, request: Request) -> bool:
        return brings_token(first_headers(request.scope), self._settings.token)


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return values as JSON, or an error for NaN or infinity."""
    try:
        body = _ENCODE(content)
    except ValueError:
        message = "rows: the numbers are so large that the model's prediction is not finite"
        return json_reply({"detail": message}, UNPROCESSABLE)
    return Response(body, status, headers, "application/json")


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # noqa: S101 - the handler is registered for this class
    headers = None if error.retry_seconds is None else {"retry-after": str(error.retry_seconds)}
    return json_reply({"detail": str(error)}, error.status, headers)


async def _told_by_starlette(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    return json_reply({"detail": error.detail}, error.status_code, error.headers)


async def _failed(_request: Request, error: Exception) -> Response:
    return json_reply({"detail": f"the server failed: {type(error).__name__}"}, 500)
