"""Limits on the work that a request may cause: size of specs, concurrency, expansion of uploads."""

import gzip
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from automl.service.http_errors import BusyError, TooLargeError
from reports.phrases import size_in_bytes
from studies.spec.spec_errors import SpecError
from studies.spec.yaml_reader import MOST_NESTED, read_yaml

SPEC_CHARS = 65_536  # most characters of a spec, with one for each value
EXPANSION = 4  # largest size of an upload that is expanded, as a multiple of what the project may have
WAIT_SECONDS = 10.0  # most seconds to wait for earlier work
CALLER: ContextVar[str] = ContextVar("caller", default="")
"""User of the current request; empty outside the service, where no limit applies."""
_CHUNK_BYTES = 2**20
_BATCH_ROWS = 1024
Places = threading.Semaphore


def spec_within(given: Mapping[str, Any] | str, source: str) -> dict[str, Any]:
    """Parse a spec (mapping or YAML). Raises SpecError if it is too long, nested too deeply or no mapping."""
    if isinstance(given, str):
        if len(given) > SPEC_CHARS:
            raise _too_long(source)
        read = read_yaml(given, source=source)
        if not isinstance(read, dict):
            raise SpecError(source, (), "the YAML text is not a mapping. Send the text of a spec")
        given = read
    waiting: list[tuple[object, int]] = [(given, 0)]
    chars = 0
    while waiting:
        value, depth = waiting.pop()
        chars += 1 + (len(value) if isinstance(value, str) else 0)
        if chars > SPEC_CHARS:
            raise _too_long(source)
        if depth > MOST_NESTED:
            raise SpecError(source, (), f"values nested more than {MOST_NESTED} deep. Write a flatter spec")
        if isinstance(value, Mapping):
            waiting += [(one, depth + 1) for pair in value.items() for one in pair]
        elif isinstance(value, list | tuple):
            waiting += [(one, depth + 1) for one in value]
    return dict(given)


def _too_long(source: str) -> SpecError:
    return SpecError(source, (), f"found more than {SPEC_CHARS:,} characters. Write a shorter spec")


@contextmanager
def held(busy: str, *wanted: tuple[Places, float]) -> Iterator[None]:
    """Hold semaphores for a `with` block. Raises BusyError if a semaphore is not free within its seconds."""
    with ExitStack() as stack:
        for places, seconds in wanted:
            if not places.acquire(timeout=seconds):
                raise BusyError(f"{busy}. Try again in a few seconds")
            stack.callback(places.release)
        yield


class Turns:
    """Limits each caller's concurrent requests: `most` may run, `most_waiting` may wait."""

    def __init__(self, what: str, *, most: int, most_waiting: int) -> None:
        self._busy = f"{what}: {most + most_waiting} of your requests run or wait"
        self._working = defaultdict[str, Places](lambda: Places(most))
        self._here = defaultdict[str, Places](lambda: Places(most + most_waiting))

    def turn(self) -> AbstractContextManager[None]:
        """Wait for the caller's turn. Raises BusyError if too many requests wait, or after `WAIT_SECONDS`."""
        who = CALLER.get()
        wanted = ((self._here[who], 0.0), (self._working[who], WAIT_SECONDS)) if who else ()
        return held(self._busy, *wanted)


SPECS = Turns("spec", most=2, most_waiting=6)  # turns to read and check a spec


def check_expanded(path: Path, name: str, upload_bytes: int) -> None:
    """Raise TooLargeError for a file that expands too far, SpecError for an unreadable file."""
    most = EXPANSION * upload_bytes
    sizes = _gzip_sizes(path) if name.lower().endswith(".gz") else _parquet_sizes(path)
    total = 0
    try:
        for size in sizes:
            total += size
            if total > most:
                raise TooLargeError(f"uploads: {name} expands to more than the allowed {size_in_bytes(most)}")
    except (OSError, EOFError, ValueError, MemoryError, zlib.error) as error:
        raise SpecError("upload", (), f"{name} cannot be read ({' '.join(str(error).split())[:120]})") from None


def _gzip_sizes(path: Path) -> Iterator[int]:
    with gzip.open(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield len(chunk)


def _parquet_sizes(path: Path) -> Iterator[int]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS):
            columns = (getattr(one, "dictionary_decode", lambda one=one: one)() for one in batch.columns)
            yield sum(column.nbytes for column in columns)
