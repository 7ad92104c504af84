"""Renders pages from templates that escape all values, and errors as one line."""

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.routing import APIRoute

from automl.service.http_errors import BusyError, ConflictError, ForbiddenError, MissingError, TooLargeError
from reports.phrases import duration, metric, number, percent, plural, size_in_bytes, usd
from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import redact
from studies.queueing.access_tokens import Identity
from studies.storage.schema.engine import StoreAwayError

PAGES = Path(__file__).parent
STATUS: tuple[tuple[type[Exception], int], ...] = (
    (ForbiddenError, 403), (MissingError, 404), (ConflictError, 409), (TooLargeError, 413), (BusyError, 429),
    (StoreAwayError, 503), (UserError, 422), (RunError, 409),
)  # fmt: skip
"""HTTP status by error type; the first match counts."""
MOST_FIELDS = 100
RETRY_SECONDS = {429: "10", 503: "2"}  # seconds for the header Retry-After, by status


def one_line(error: Exception) -> str:
    """Return an error's message in one line, without passwords."""
    return redact(" ".join(str(error).split()))


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def page(request: Request, name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page as an HTTP response."""
    identity: Identity | None = request.scope["state"].get("identity")
    always = {
        "identity": identity,
        "may_write": identity is not None and identity.role != "viewer",
        "has_token": identity is not None and identity.token_id is not None,
        "path": request.url.path,
        "mlflow_server": request.app.state.context.policy.mlflow_server,
        "problem": "",
    }
    return HTMLResponse(rendered(name, always | values), status_code=status, headers={"Cache-Control": "no-store"})


def rendered(name: str, values: Mapping[str, Any]) -> str:
    """Return a page as text."""
    return _environment().get_template(name).render(values)


def refusal(accept: str, status: int, detail: str) -> Response:
    """Return an error as JSON, or as a page if the header Accept asks for HTML."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    headers |= {"Retry-After": RETRY_SECONDS[status]} if status in RETRY_SECONDS else {}
    if "text/html" not in accept:
        return JSONResponse({"detail": detail}, status_code=status, headers=headers)
    values = {"identity": None, "path": "", "problem": detail, "title": HTTPStatus(status).phrase.capitalize()}
    return HTMLResponse(rendered("error.html", values), status_code=status, headers=headers)


def to(path: str) -> Response:
    """Redirect to another page after a form."""
    return RedirectResponse(path, status_code=303)


async def form_of(request: Request) -> Mapping[str, str]:
    """Return a submitted form's fields. The last value of a repeated field counts."""
    try:
        text = (await request.body()).decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise UserError("the form's fields cannot be read. Submit the form of this page again") from None
    return {name: value.replace("\r\n", "\n").strip() for name, value in pairs}


class PageRoute(APIRoute):
    """A route that shows errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that shows user errors as pages."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except (UserError, RunError) as error:
                status = status_of(error)
                title = HTTPStatus(status).phrase.capitalize()
                return page(request, "error.html", status=status, title=title, problem=one_line(error))
            except RequestValidationError:  # in a path or a query that no page of this service links to
                return page(request, "error.html", status=404, title="Not found", problem="There is no such page.")

        return answer


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own: dict[str, Callable[..., str]] = {
        "usd": usd, "duration": duration, "number": number, "percent": percent, "plural": plural,
        "bytes": size_in_bytes, "moment": moment,
    }  # fmt: skip
    environment.filters.update(own)
    environment.globals["metric"] = metric
    return environment


def moment(seconds: float | None) -> str:
    """Format a time (seconds since 1970) in UTC."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
