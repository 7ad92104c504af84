"""A client of the service (`automl serve`), with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from automl.remote.errors import RefusedError, UnreachableError
from automl.standalone.serving.loopback import is_loopback
from search_spaces.errors import UserError

API = "/api/v1"
ANSWER_SECONDS = 150.0
"""Longest time to wait for an answer: the check of a spec imports the task's code, which may take two minutes."""
DOWNLOAD_SECONDS = 900.0
"""The same where the service makes what is asked for first, as a model that is exported."""
_SERVER_FAILED = 500
_CHUNK_BYTES = 2**20
_UNKNOWN_ROUTE = "Not Found"
"""What FastAPI says of a path that it does not know; of a study there is another line."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, since the token would go with it to wherever it leads."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request, so that the answer is an error."""


class ServiceClient:
    """Asks a service, as the user of a token.

    Args:
        url: Address of the service, such as https://automl.example:8765.
        token: Token of the user; None for a service on this machine that needs none.

    Raises:
        UserError: The address is none.
    """

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise UserError(f"--server: found {url!r}, allowed: http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        self._token = token
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if is_loopback(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy would ask its own machine
        self._opener = urllib.request.build_opener(*handlers)

    @property
    def has_token(self) -> bool:
        """Whether it brings a token."""
        return self._token is not None

    def beside_api(self, path: str) -> tuple[Any, float | None]:
        """Return the JSON of a path that needs no token, such as /ready, and when it was answered.

        Returns:
            The JSON, and the moment by the server's clock in seconds since 1970, None if it does not tell.

        Raises:
            ValueError: The answer is no JSON.
        """
        with self._answer("GET", path, below="") as answer:
            moment = parsedate_to_datetime(answer.headers["Date"]).timestamp() if answer.headers["Date"] else None
            return json.loads(answer.read().decode("utf-8")), moment

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of a resource."""
        return json.loads(self.text(path, **query))

    def text(self, path: str, **query: Any) -> str:
        """Return a resource as text."""
        return self._asked("GET", _with_query(path, query))

    def download(self, path: str, file: BinaryIO, **query: Any) -> None:
        """Write a resource to a file.

        Raises:
            UserError: The file cannot be written.
            UnreachableError: The connection is lost.
        """
        with self._answer("GET", _with_query(path, query), seconds=DOWNLOAD_SECONDS) as answer:
            length, kept = answer.headers["Content-Length"], 0
            while chunk := answer.read(_CHUNK_BYTES):
                try:
                    kept += file.write(chunk)
                except OSError as error:
                    raise UserError(f"the answer cannot be kept: {error.strerror or error}") from None
        if length is not None and kept != int(length):
            raise UnreachableError(f"{self.url} has ended the connection")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for a change; returns the JSON of the answer."""
        return json.loads(self._asked("POST", path, {} if body is None else body))

    def delete(self, path: str) -> Any:
        """Delete a resource; returns the JSON of the answer."""
        return json.loads(self._asked("DELETE", path))

    def statuses(self, study: str) -> Iterator[dict[str, Any] | None]:
        """Yield the status of a study whenever it changes, the last time when it has ended.

        None stands for a line that only says that the service is there.

        Raises:
            RefusedError: There is no such study.
            UnreachableError: The connection is lost.
        """
        with self._answer("GET", study_path(study, "events")) as answer:
            event = ""
            for line in answer:
                field, _, value = line.decode("utf-8").rstrip("\n").partition(": ")
                if field == "event":
                    event = value
                elif field == "data" and event == "status":
                    yield json.loads(value)
                elif field == "data" and event == "end":
                    return
                elif line.startswith(b":"):
                    yield None
        raise UnreachableError(f"{self.url} has ended the connection")

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        with self._answer(method, path, body) as answer:
            return str(answer.read().decode("utf-8"))

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        below: str = API,
        seconds: float = ANSWER_SECONDS,
    ) -> Iterator[Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode("utf-8")
        request = urllib.request.Request(self.url + below + path, data=data, headers=headers, method=method)  # noqa: S310 - the scheme was checked
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UnreachableError(f"{self.url} does not answer ({reason}); is `automl serve` running there?") from None

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        """The error of an answer that is none, with what the service says."""
        detail = _detail(error)
        if error.code >= _SERVER_FAILED:
            return UnreachableError(f"{self.url} cannot answer now (status {error.code}{detail and f': {detail}'})")
        if error.code == http.HTTPStatus.UNAUTHORIZED:
            given = "no token" if self._token is None else "a token that is not valid there"
            detail = f"token: found {given}, allowed: AUTOML_TOKEN, or a file ~/.config/automl/token with mode 600"
        if error.code == http.HTTPStatus.NOT_FOUND and detail == _UNKNOWN_ROUTE:
            detail = f"{self.url} does not know this request: it is of another version of automl; install its version"
        return RefusedError(detail or f"{self.url} refuses this with status {error.code}", error.code)


def _with_query(path: str, query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def study_path(study: str, *parts: object) -> str:
    """Return the path of a study, or of a part of it."""
    return "/".join(["/studies", *(quote(str(part), safe="") for part in (study, *parts))])


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read().decode("utf-8"))
    except (OSError, ValueError, http.client.HTTPException):
        return ""
    return str(found.get("detail", "")) if isinstance(found, dict) else ""
