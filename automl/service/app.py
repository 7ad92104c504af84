"""The service as an ASGI application: routes, errors as answers, and the gate around all of it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from automl.service import admin_routes, client_routes, health_routes, study_routes
from automl.service.context import ServiceContext
from automl.service.errors import ConflictError, ForbiddenError, MissingError, TooLargeError
from automl.service.gate import Gate
from automl.service.log_lines import writer
from automl.service.metrics import Metrics
from search_spaces.errors import RunError, UserError

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (ForbiddenError, 403), (MissingError, 404), (ConflictError, 409), (TooLargeError, 413), (UserError, 422),
    (RunError, 409),
)  # fmt: skip
_POLICY = "default-src 'self'; style-src 'self'; frame-ancestors 'self'; form-action 'self'; base-uri 'none'"


def make_app(context: ServiceContext, *, needs_token: bool, host: str) -> Gate:
    """Return the application.

    Args:
        context: Store, and what the operator allows.
        needs_token: Whether requests need a token.
        host: Address on which the service listens.
    """
    app = bare_app(context)
    return Gate(app, context.store, needs_token=needs_token, host=host)


def bare_app(context: ServiceContext) -> FastAPI:
    """Return the application without the gate; its routes expect an identity in the request's scope."""
    app = FastAPI(title="automl", version="1", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.context = context
    app.state.metrics = Metrics()
    for routes in (client_routes, study_routes, admin_routes, health_routes):
        app.include_router(routes.router)
    for kind, status in _STATUS:
        app.add_exception_handler(kind, _told(status))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(DBAPIError, _store_is_away)
    app.middleware("http")(_observed)
    if find_spec("mcp") is not None:
        from automl.mcp_server.mounted import mount

        mount(app)
    return app


def _told(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": " ".join(str(error).split())}, status_code=status)

    return answer


async def _invalid(_request: Request, error: Exception) -> Response:
    """Say in one line which field is wrong; what was found is not repeated, since it may be a secret."""
    first: dict[str, Any] = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    place = ".".join(str(part) for part in first.get("loc", ()))
    return JSONResponse({"detail": f"{place}: {first.get('msg', 'is not valid')}"}, status_code=422)


async def _store_is_away(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"detail": "the store does not answer now"}, status_code=503, headers={"Retry-After": "2"})


async def _observed(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Count and log each request, and let browsers run nothing but what comes from here."""
    began = time.perf_counter()
    response = await call_next(request)
    seconds = time.perf_counter() - began
    route = request.scope.get("route")
    path = getattr(route, "path", "other")
    request.app.state.metrics.answered(request.method, path, response.status_code, seconds)
    identity = request.scope.get("state", {}).get("identity")
    _log("request", method=request.method, path=path, status=response.status_code, milliseconds=round(seconds * 1e3, 1),
         user=getattr(identity, "user", None))  # fmt: skip
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Referrer-Policy", "same-origin")
    if not path.endswith("/report"):  # a report has a policy of its own, for its scripts
        response.headers.setdefault("Content-Security-Policy", _POLICY)
    return response


_log = writer()
