"""`automl logs`: reads the output of a trial's ranks from files beside the spec."""

import codecs
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from search_spaces.messages import listed
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from trainers.ranks.printed_output import log_folder, logs_in, older, seeds_of_trial

LOOK_SECONDS = 0.5
_CHUNK_BYTES = 2**16
_TRIES, _PAUSE_SECONDS = 20, 0.01


def log_of(
    store: Store, study: str, trial: int, rank: int, *, attempt: int | None = None, seed: int | None = None
) -> Path:
    """Return the file with a rank's output, by default of the latest attempt. Raises StoreError if there is none."""
    row = store.require(study)
    if seed is not None and seed not in (seeds := seeds_of_trial(row.base_folder, study, trial)):
        allowed = listed(map(str, seeds)) if seeds else "none, since no training that confirmed it has logs here"
        raise StoreError(f"--seed: found {seed}, allowed: {allowed}")
    folder = log_folder(row.base_folder, study, trial, seed=seed)
    found = logs_in(folder, row.created_at)
    attempts = sorted({number for number, _ in found})
    if not attempts:
        raise StoreError(f"trial: {trial} has no output on this machine, in {folder}. Was it run on another machine?")
    if attempt is not None and attempt not in attempts:
        raise StoreError(f"--attempt: found {attempt}, allowed: {listed(map(str, attempts))}")
    attempt = attempts[-1] if attempt is None else attempt
    ranks = sorted(one for number, one in found if number == attempt)
    if rank not in ranks:
        raise StoreError(f"--rank: found {rank}, allowed: {listed(map(str, ranks))}")
    return found[attempt, rank]


def text_of(path: Path) -> Iterator[str]:
    """Yield a rank's stored output, oldest first."""
    return followed(path, lambda: False)


def followed(path: Path, is_running: Callable[[], bool]) -> Iterator[str]:
    """Yield output while the trial runs. Full files are renamed, so each file is read to its end."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    with ExitStack() as opened:
        last: BinaryIO | None = None
        while True:
            goes_on = is_running()
            for file in _from(last, path):
                if file is not last:
                    opened.enter_context(file)
                    if last is not None:
                        last.close()
                    last = file
                while chunk := file.read(_CHUNK_BYTES):
                    yield decode(chunk)
            if not goes_on:
                yield decode(b"", final=True)
                return
            time.sleep(LOOK_SECONDS)


def _from(last: BinaryIO | None, path: Path) -> list[BinaryIO]:
    """Open the files to read: the last one, and newer files."""
    for _ in range(_TRIES):
        newest = _opened(path)
        before = _opened(older(path))
        if newest is None or (before is not None and _is_same(newest, before)):
            for file in (newest, before):  # the newest may be replacing the other at this moment
                if file is not None:
                    file.close()
            time.sleep(_PAUSE_SECONDS)
            continue
        files = [file for file in (before, newest) if file is not None]
        if last is None:
            return files
        for place, file in enumerate(files):
            if _is_same(last, file):
                for known in files[: place + 1]:
                    known.close()
                return [last, *files[place + 1 :]]
        return [last, *files]
    return [] if last is None else [last]


def _is_same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _opened(path: Path) -> BinaryIO | None:
    try:
        return cast("BinaryIO", path.open("rb", buffering=0))
    except FileNotFoundError:
        return None
