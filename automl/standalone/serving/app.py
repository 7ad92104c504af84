"""The HTTP interface as an ASGI application: rows in, answers out."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from ..batches import Encoded
from . import docs_page
from .access import brings_token, first_headers
from .bodies import TOGETHER, Bodies
from .errors import RequestError
from .metrics import CONTENT_TYPE, exposition
from .predictions import KEYS, LARGE_BODY, Asked, Predictions
from .replies import Reply, failure, json_reply, refusal
from .roles import CHALLENGER, CHAMPION
from .schema import openapi_of
from .settings import Settings
from .state import ServingState


def make_app(settings: Settings, state: ServingState, predictions: Predictions) -> FastAPI:
    """Return the application, to which `access.Gate` lets requests through.

    Args:
        settings: Limits and the token.
        state: The models.
        predictions: Answers rows.
    """
    app = FastAPI(title="A trained model", version="1", openapi_url=None, docs_url=None, redoc_url=None)
    endpoints = _Endpoints(settings, state, predictions)
    app.add_route("/", endpoints.root, methods=["GET"])
    app.add_route("/docs", endpoints.docs, methods=["GET"])
    app.add_route("/openapi.json", endpoints.openapi, methods=["GET"])
    app.add_route("/health", endpoints.health, methods=["GET"])
    app.add_route("/metrics", endpoints.metrics, methods=["GET"])
    for path in KEYS:
        app.add_route(path, endpoints.predict, methods=["POST"])
    app.add_exception_handler(RequestError, _told)
    app.add_exception_handler(HTTPException, _told_by_starlette)
    app.add_exception_handler(Exception, _failed)
    return app


class _Endpoints:
    """What answers each path."""

    def __init__(self, settings: Settings, state: ServingState, predictions: Predictions) -> None:
        self._settings, self._state, self._predictions = settings, state, predictions
        self._bodies = Bodies(settings.body_bytes, TOGETHER * settings.body_bytes)

    async def root(self, _request: Request) -> Response:
        """Lead to the documentation."""
        return RedirectResponse("docs")

    async def docs(self, _request: Request) -> Response:
        """Return the page on which requests can be tried."""
        return HTMLResponse(docs_page.PAGE, headers=docs_page.HEADERS)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document; only who may ask for answers is told the model's columns and labels."""
        return _response(json_reply(openapi_of(self._settings, self._state, tells_model=self._is_known(request))))

    async def health(self, request: Request) -> Response:
        """Say whether requests are answered; only who may ask for answers is told why a model does not load."""
        state = self._state
        is_ready = CHAMPION in state.models and not state.is_draining
        status = "draining" if state.is_draining else "ok" if CHAMPION in state.models else "loading"
        problem: str | None = state.problem or None
        if problem and not self._is_known(request):
            problem = "the newest model does not load; the server's log says why"
        versions = state.versions()
        content = {
            "status": status,
            "model_loaded": CHAMPION in state.models,
            "model": versions.get(CHAMPION),
            "challenger": versions.get(CHALLENGER),
            "problem": problem,
        }
        return _response(json_reply(content) if is_ready else json_reply(content, 503, (("retry-after", "1"),)))

    async def metrics(self, _request: Request) -> Response:
        """Return the figures of all workers."""
        return Response(await asyncio.to_thread(exposition), headers={"content-type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        """Answer one row or a list of rows, as the path says."""
        predictions = self._predictions
        asked = predictions.asked(first_headers(request.scope), KEYS[request.scope["path"]])
        is_read = False
        try:
            async with asyncio.timeout(self._settings.timeout_seconds), self._bodies.read(request) as body:
                is_read = True
                rows = await self._rows(asked, body)
                answers = await predictions.batcher.answers(asked.served, rows)
        except TimeoutError:
            if not is_read:
                seconds = f"{self._settings.timeout_seconds:g} seconds"
                raise RequestError(408, f"body: found no end in {seconds}") from None
            raise predictions.too_late() from None
        return _response(predictions.reply(asked, answers))

    async def _rows(self, asked: Asked, body: bytes) -> list[Encoded]:
        if asked.served.is_slow_to_read or len(body) > LARGE_BODY:
            return await asyncio.to_thread(self._predictions.rows, asked, body)
        return self._predictions.rows(asked, body)

    def _is_known(self, request: Request) -> bool:
        return brings_token(first_headers(request.scope), self._settings.token)


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), "application/json")


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # noqa: S101 - what it is registered for
    return _response(refusal(error))


async def _told_by_starlette(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    headers = tuple((error.headers or {}).items())
    return _response(json_reply({"detail": error.detail}, error.status_code, headers))


async def _failed(_request: Request, error: Exception) -> Response:
    return _response(failure(error))
