"""HTTP client of the service (`automl serve`): sends the token, and raises refusals and outages as errors."""

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter

from automl.remote.record_json import read
from automl.standalone.serving.listening import is_loopback
from search_spaces.messages import RunError, UserError
from studies.records.records import StudyRecord

API = "/api/v1"
ANSWER_SECONDS = 150.0  # most seconds to wait for an answer: a spec check may take two minutes
DOWNLOAD_SECONDS = 900.0  # most seconds to wait for slow answers, such as an export
PATIENCE_SECONDS = 60.0  # seconds to retry requests to a silent service, for example during a restart
_PAUSE_SECONDS = 1.0
_CHUNK_BYTES = 2**20
_UNKNOWN_ROUTE = "Not Found"  # FastAPI's text for an unknown path; an unknown study has another text
Found = TypeVar("Found")


class RefusedError(UserError):
    """The service refuses the request with an HTTP `status`. Change the request. Exit code 2."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreachableError(RunError):
    """The service does not answer now. Try the command again later. Exit code 1."""


@dataclass(slots=True)
class Patience:
    """Waits between retries. The time limit starts at the first failure in a row."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _failed_at: float | None = None

    def answered(self) -> None:
        """Reset the time limit after an answer."""
        self._failed_at = None

    def failed(self, error: UnreachableError) -> None:
        """Wait before a retry. Raises the error after `PATIENCE_SECONDS` without an answer."""
        now = self.clock()
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at >= PATIENCE_SECONDS:
            raise error
        self.sleep(_PAUSE_SECONDS)


def patiently(ask: Callable[[], Found]) -> Found:
    """Call a function again for up to `PATIENCE_SECONDS` while the service does not answer."""
    patience = Patience()
    while True:
        try:
            return ask()
        except UnreachableError as error:
            patience.failed(error)


class _SystemCertificates(HTTPAdapter):
    """Makes requests trust this machine's certificates, too."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **options)


class ServiceClient:
    """Sends requests to a service, as the user of a token.

    `url` is an address such as https://automl.example:8765. Raises UserError for another form.
    """

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise UserError(f"--server: found {url!r}, allowed: http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        self._token = token
        self._session = requests.Session()
        self._session.auth = self._signed
        self._session.mount("https://", _SystemCertificates())
        if is_loopback(parts.hostname):
            self._session.trust_env = False  # a proxy would look for the service on its own machine

    def _signed(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token to a request. Without this hook, requests would send a password from ~/.netrc."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    @property
    def has_token(self) -> bool:
        """Return whether requests have a token."""
        return self._token is not None

    def beside_api(self, path: str) -> tuple[Any, float | None]:
        """Return a path's JSON, and the server's time in seconds since 1970. Raises ValueError if it is no JSON."""
        with self._answer("GET", path, below="") as answer:
            date = answer.headers.get("Date")
            return json.loads(answer.content), parsedate_to_datetime(date).timestamp() if date else None

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of a resource."""
        return json.loads(self.text(path, **query))

    def text(self, path: str, **query: Any) -> str:
        """Return a resource as text."""
        return self._asked("GET", path, query=query)

    def download(self, path: str, file: BinaryIO, **query: Any) -> None:
        """Write a resource to a file. Raises UserError if writing fails, UnreachableError if the connection is lost."""
        with self._answer("GET", path, query=query, seconds=DOWNLOAD_SECONDS) as answer:
            for chunk in answer.iter_content(_CHUNK_BYTES):
                try:
                    file.write(chunk)
                except OSError as error:
                    raise UserError(f"the downloaded file cannot be saved: {error.strerror or error}") from None

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a POST request, and return the answer's JSON."""
        return json.loads(self._asked("POST", path, body={} if body is None else body))

    def delete(self, path: str) -> Any:
        """Delete a resource, and return the answer's JSON."""
        return json.loads(self._asked("DELETE", path))

    def record(self, study: str | None) -> StudyRecord:
        """Return the record of a study, by default of the newest started study. Raises UserError if there is none."""
        if study is None:
            lines = self.get("/lines")
            if not lines:
                raise UserError("The service has no started study yet. Submit one with `automl launch SPEC`")
            study = str(lines[-1]["study"])
        text = self.text(study_path(study, "record"))
        try:
            return read(text)
        except (ValueError, KeyError, TypeError):
            raise UnreachableError(
                f"the service {self.url} runs another version of automl. Install the same version here"
            ) from None

    def statuses(self, study: str) -> Iterator[dict[str, Any] | None]:
        """Yield a study's status at each change, None as a keep-alive. Raises RefusedError or UnreachableError."""
        with self._answer("GET", study_path(study, "events")) as answer:
            event = ""
            for line in answer.iter_lines(_CHUNK_BYTES):  # small chunks, so that each event arrives at once
                field, _, value = line.decode("utf-8").partition(": ")
                if field == "event":
                    event = value
                elif field == "data" and event == "status":
                    yield json.loads(value)
                elif field == "data" and event == "end":
                    return
                elif line.startswith(b":"):
                    yield None
        raise UnreachableError(f"the service {self.url} closed the connection")

    def _asked(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> str:
        with self._answer(method, path, query=query, body=body) as answer:
            return answer.content.decode("utf-8")

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        below: str = API,
        seconds: float = ANSWER_SECONDS,
    ) -> Iterator[requests.Response]:
        """Send a request, and yield the unread answer. Refuses redirects, which would leak the token."""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
        try:
            with self._session.request(
                method, self.url + below + path, params=query, json=body, headers=headers, timeout=seconds,
                allow_redirects=False, stream=True,
            ) as answer:  # fmt: skip
                if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
                    raise self._refusal(answer)
                yield answer
        except requests.RequestException as error:
            raise UnreachableError(self._why_away(error)) from None

    def _why_away(self, error: Exception) -> str:
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return f"the service {self.url} closed the connection"
        cause: BaseException = error
        while (before := cause.__cause__ or cause.__context__) is not None:
            cause = before
        return f"{self.url} does not answer ({cause}). Is `automl serve` running there?"

    def _refusal(self, answer: requests.Response) -> Exception:
        code, detail = answer.status_code, _detail(answer)
        if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return UnreachableError(f"{self.url} cannot answer now (status {code}{detail and f': {detail}'})")
        if code == HTTPStatus.UNAUTHORIZED:
            given = "no token is set" if self._token is None else "the service does not accept this token"
            detail = f"token: {given}. Set AUTOML_TOKEN, or write it to ~/.config/automl/token with mode 600"
        if code == HTTPStatus.NOT_FOUND and detail == _UNKNOWN_ROUTE:
            detail = f"{self.url} does not know this request: it is another version of automl. Install it here"
        return RefusedError(detail or f"{self.url} refuses this with status {code}", code)


def study_path(study: str, *parts: object) -> str:
    """Return the URL path of a study, or of a part of it."""
    return "/".join(["/studies", *(quote(str(part), safe="") for part in (study, *parts))])


def _detail(answer: requests.Response) -> str:
    try:
        found = json.loads(answer.content)
    except (requests.RequestException, ValueError):
        return ""
    return str(found.get("detail", "")) if isinstance(found, dict) else ""
