"""Log lines of workers and service: a JSON object each, with study and trial."""

import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from search_spaces.untrusted_text import redact

_TRIAL = re.compile(r"trial (\d+)\b")
_lock = threading.Lock()


def json_line(message: str, **fields: Any) -> str:
    """Return a JSON log line without credentials: time, message, and the fields that are not None."""
    trial = _TRIAL.match(message)
    known = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "message": redact(message)}
    if trial is not None:
        known["trial"] = trial.group(1)
    return json.dumps(known | {name: value for name, value in fields.items() if value is not None}, default=str)


def writer(stream: TextIO | None = None, **always: Any) -> Callable[..., None]:
    """Return a function that logs a message with the fields `always` and its own; by default to stderr."""

    def write(message: str, **fields: Any) -> None:
        line = json_line(message, **(always | fields))
        with _lock:
            print(line, file=stream or sys.stderr, flush=True)

    return write


class JsonHandler(logging.Handler):
    """Logging handler that writes JSON lines, with level, logger and traceback."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._write = writer(stream)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record as one JSON line."""
        trace = None if record.exc_info is None else redact(logging.Formatter().formatException(record.exc_info))
        self._write(record.getMessage(), level=record.levelname.lower(), logger=record.name, traceback=trace)
