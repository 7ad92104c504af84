"""Settings of the server: arguments, else variables AUTOML_SERVE_..., else a settings file, else defaults."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from .errors import ServeError
from .listening import is_loopback

PREFIX = "AUTOML_SERVE_"
_SHORTEST_TOKEN = 16
GONE = ("challenger", "share", "answers", "answers_mib")
Positive = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Settings of the server, with the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", validate_default=True)

    host: str = Field("127.0.0.1", description="Listening address. Public addresses need a token.")
    port: int = Field(8000, ge=0, le=65535, description="Listening port; 0 picks a free port.")
    workers: int = Field(1, ge=1, le=256, description="Number of worker processes.")
    threads: int | None = Field(
        None, ge=1, description="PyTorch threads per worker process. Default: its share of the CPUs, minus 1."
    )
    device: str = Field("cpu", description="Device that computes the predictions, such as cuda.")
    batch_rows: Positive = Field(64, description="Largest number of rows in one forward pass.")
    batch_wait_ms: float = Field(
        5.0, ge=0, le=10_000, description="Longest wait of a row for rows of other requests, in milliseconds."
    )
    queue_rows: Positive = Field(4096, description="Rows that may wait in a worker. Further rows get status 429.")
    request_rows: Positive = Field(1000, description="Largest number of rows in one request.")
    body_mib: float = Field(16.0, gt=0, le=1024, description="Largest body of a request in MiB; more gets status 413.")
    timeout_seconds: float = Field(30.0, gt=0, le=3600, description="Seconds until an unanswered request gets 503.")
    poll_seconds: float = Field(2.0, gt=0, le=3600, description="Seconds between checks for a replaced model.")
    trust: bool = Field(False, description="Load a .pt2 file of another author, which can run any code.")
    challenger: str | None = None
    share: str | None = None
    answers: str | None = None
    answers_mib: str | None = None
    token_file: Path | None = Field(None, description="File with the token that clients must send.")
    token: SecretStr | None = Field(None, description="The token itself, only from the environment.")

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].get_default() if value == "" else value

    @field_validator(*GONE)
    @classmethod
    def _is_gone(cls, value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError(
                "gone", "this option was removed; to compare models, split requests between two servers"
            )
        return value

    @property
    def body_bytes(self) -> int:
        """Return the largest request body in bytes."""
        return int(self.body_mib * 2**20)

    @property
    def is_open(self) -> bool:
        """Return whether requests need no token."""
        return self.token is None

    @property
    def worker_threads(self) -> int:
        """Return a worker's compute threads: its share of the CPUs, minus one for HTTP."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.workers - 1)


def settings_of(given: Mapping[str, Any], file: Path | None = None) -> Settings:
    """Read settings from `given`, the environment, or a file. Raises ServeError for a wrong setting."""
    if file is not None and not file.is_file():
        raise ServeError(f"--settings: {str(file)!r} is not a file. Name a file with lines {PREFIX}NAME=VALUE")
    try:
        found = Settings(_env_file=file, **{name: one for name, one in given.items() if one is not None})
    except ValidationError as error:
        raise ServeError(_line(error)) from None
    found = _with_token(found)
    if found.request_rows > found.queue_rows:
        raise ServeError(f"--queue-rows is {found.queue_rows}, less than --request-rows, which is {found.request_rows}")
    if found.is_open and not is_loopback(found.host):
        raise ServeError(
            f"--host {found.host!r} needs a token. Use 127.0.0.1 or another loopback address, or pass "
            f"--token-file FILE or {PREFIX}TOKEN"
        )
    return found


def token_problem(token: str) -> str:
    """Return why a token is guessable or unfit for a header, or ""."""
    if len(token) >= _SHORTEST_TOKEN and token.isascii() and token.isprintable() and " " not in token:
        return ""
    allowed = f"at least {_SHORTEST_TOKEN} printable ASCII characters without spaces"
    return f"found a token of {len(token)} characters, allowed: {allowed}"


def _with_token(found: Settings) -> Settings:
    if found.token_file is None:
        token = None if found.token is None else found.token.get_secret_value()
        place = f"{PREFIX}TOKEN"
    else:
        place = "--token-file"
        try:
            token = found.token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ServeError(f"{place}: {found.token_file} cannot be read: {reason}") from None
    if token is None:
        return found
    if problem := token_problem(token):
        raise ServeError(f"{place}: {problem}")
    return found.model_copy(update={"token": SecretStr(token)})


def _line(error: ValidationError) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0])
    where = f"--{name.replace('_', '-')} ({PREFIX}{name.upper()})"
    found = "a value" if name == "token" else repr(first["input"])
    if name in GONE:
        return f"{where}: {first['msg']}"
    return f"{where}: found {found}, allowed: {first['msg'].removeprefix('Input should be ')}"
