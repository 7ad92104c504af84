"""The service as an ASGI application: access control, routes, error answers."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from automl.service.http import health, routes_admin, routes_studies, routes_uploads
from automl.service.http.context import ServiceContext
from automl.service.http.gate import Asgi, Gate, Receive, Scope, Send
from automl.service.http.health import Metrics
from automl.service.mounts import mlflow_proxy, optuna_mount
from automl.service.pages import page_routes, submit_pages
from automl.service.pages.rendering import STATUS, refusal
from automl.service.workers.traces import writer
from studies.storage.writing.retrying import is_away

_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body cannot be read."},
    401: {"description": "No valid token."},
    403: {"description": "The role does not allow this, or another site has sent it."},
    404: {"description": "It does not exist, or the caller may not see it."},
    409: {"description": "The state does not allow this now."},
    413: {"description": "The data are too large."},
    422: {"description": "The input is wrong; `detail` is one line that names the place."},
    429: {"description": "Too many checks or exports are running now."},
    503: {"description": "The store does not answer now."},
}
MOST_LINES = 600  # most log lines about requests of a user, or of an address without a token, in a minute
_SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))
_POLICY = (
    b"content-security-policy",
    b"default-src 'self'; frame-ancestors 'self'; form-action 'self'; base-uri 'none'; object-src 'none'",
)


def make_app(context: ServiceContext, *, is_open: bool = False, host: str) -> Asgi:
    """Return the whole application. With `is_open`, every user of the machine is an admin, even if tokens exist."""
    app = bare_app(context)
    return _Observer(Gate(app, context.store, is_open=is_open, host=host), app.state.metrics)


def bare_app(context: ServiceContext) -> FastAPI:
    """Return the application without access control. Routes expect an identity in the request's scope."""
    app = FastAPI(title="automl", version="1", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.context = context
    app.state.metrics = Metrics()
    for routes in (routes_studies, routes_admin, health, routes_uploads):
        app.include_router(routes.router, responses=_RESPONSES)
    for routes in (page_routes, submit_pages, mlflow_proxy):
        app.include_router(routes.router)
    optuna_mount.mount(app)
    for kind, status in STATUS:
        app.add_exception_handler(kind, _told(status))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(DBAPIError, _store_is_away)
    if find_spec("mcp") is not None:
        from automl.mcp_server.mounted import mount

        mount(app)
    return app


def _told(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        return refusal(request.headers.get("accept", ""), status, " ".join(str(error).split()))

    return answer


async def _invalid(_request: Request, error: Exception) -> Response:
    """Name the wrong field in one line, without its value, which may be a secret."""
    first: dict[str, Any] = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    place = ".".join(str(part) for part in first.get("loc", ()))
    problem = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    return JSONResponse({"detail": f"{place}: {problem}"}, status_code=422)


async def _store_is_away(request: Request, error: Exception) -> Response:
    if not (isinstance(error, DBAPIError) and is_away(error)):
        raise error  # a bug of this service: the log shows it, and trying again would not help
    return refusal(request.headers.get("accept", ""), 503, "the store does not answer now")


class _Observer:
    """Counts and logs requests, and adds headers that let browsers run only own scripts."""

    def __init__(self, app: Asgi, metrics: Metrics) -> None:
        self._app, self._metrics, self._log = app, metrics, writer()
        self._minute, self._lines = 0, Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.get("headers", [])
                safe = _SAFE_HEADERS if self._path(scope).endswith("/report") else (*_SAFE_HEADERS, _POLICY)
                given = {name.lower() for name, _ in headers}
                message["headers"] = [*headers, *((name, value) for name, value in safe if name not in given)]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:  # the service ends
            pass
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = self._path(scope)
        self._metrics.answered(scope["method"], path, status, seconds)
        identity = scope.get("state", {}).get("identity")
        user = getattr(identity, "user", None)
        client = str((scope.get("client") or ("",))[0])
        count = self._lines_of(user or client)
        if count == MOST_LINES + 1:
            self._log("no more lines of this client in this minute", client=client, user=user)
        if count <= MOST_LINES:
            milliseconds = round(seconds * 1e3, 1)
            self._log("request", method=scope["method"], path=path, status=status, milliseconds=milliseconds, user=user)

    def _lines_of(self, who: str) -> int:
        """Count a log line of a user or address. Returns its number of lines in this minute."""
        if (minute := int(time.monotonic() // 60)) != self._minute:
            self._minute, self._lines = minute, Counter()
        self._lines[who] += 1
        return self._lines[who]

    @staticmethod
    def _path(scope: Scope) -> str:
        """Return a request's route, not its path: names of studies must not create metric series."""
        return str(getattr(scope.get("route"), "path", "other"))
