"""Proxy to the operator's MLflow server, under /mlflow/. For admins only, because MLflow has no projects.

Start MLflow with `mlflow server --static-prefix /mlflow`: paths are forwarded unchanged. MLflow's pages may run inline
scripts; other content, such as a logged HTML file, may not.
"""

import http.client
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from automl.service.http.routes_admin import AdminContext
from automl.service.http_errors import MissingError
from automl.service.pages.rendering import to

router = APIRouter(include_in_schema=False)
PREFIX = "/mlflow"
TIMEOUT_SECONDS = 60.0
CHUNK_BYTES = 2**16
_HANDED_ON = ("accept", "content-type", "range", "if-none-match", "if-modified-since")
"""Request headers that are forwarded, without cookies and tokens of this service."""
_HANDED_BACK = ("content-type", "content-length", "content-disposition", "content-encoding", "content-range",
                "cache-control", "etag", "last-modified")  # fmt: skip
_PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; frame-src 'self' blob: data:; "
    "frame-ancestors 'self'; base-uri 'self'"
)
_DATA_POLICY = "sandbox; default-src 'none'"


async def body_of(request: Request) -> bytes:
    """Return the body of a request, which `Gate` has limited."""
    return await request.body()


@router.get(PREFIX)
def front() -> Response:
    """Redirect to MLflow's front page."""
    return to(f"{PREFIX}/")


@router.api_route(PREFIX + "/{rest:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def hand_on(request: Request, context: AdminContext, body: Annotated[bytes, Depends(body_of)], rest: str) -> Response:
    """Forward a request to the MLflow server, and return its answer."""
    server = context.policy.mlflow_server
    if not server:
        raise MissingError("this service has no MLflow server. The operator names one with --mlflow-server URL")
    headers = {name: request.headers[name] for name in _HANDED_ON if name in request.headers}
    path = request.scope["raw_path"].decode("ascii", "replace")
    query = request.url.query
    try:
        connection = _connection(server)
        connection.request(request.method, f"{path}?{query}" if query else path, body or None, headers)
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException):
        return JSONResponse({"detail": "the MLflow server does not answer"}, status_code=502)
    back = {name: value for name in _HANDED_BACK if (value := answer.getheader(name)) is not None}
    location = answer.getheader("location", "")
    if location.removeprefix(server).startswith(f"{PREFIX}/"):
        back["location"] = location.removeprefix(server)
    is_page = rest == "" or rest.startswith("static-files/")
    back["content-security-policy"] = _PAGE_POLICY if is_page else _DATA_POLICY
    return StreamingResponse(_chunks(connection, answer), status_code=answer.status, headers=back)


def _connection(server: str) -> http.client.HTTPConnection:
    parts = urlsplit(server)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)


def _chunks(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := answer.read(CHUNK_BYTES):
            yield chunk
    finally:
        connection.close()
