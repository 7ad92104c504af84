"""`automl logs`: what the command of a trial has printed, from the files beside the spec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from search_spaces.wording import listed
from studies.storage.engine import StoreError
from studies.storage.store import Store
from trainers.commands.command import COMMAND
from trainers.commands.rank_log import log_folder, logs_in, older

LOOK_SECONDS = 0.5


def log_of(store: Store, study: str, trial: int, rank: int, attempt: int | None) -> Path:
    """Return the file with the output of a rank.

    Args:
        store: Store of the study.
        study: Name of the study.
        trial: Number of a trial that was started.
        rank: Number of the rank.
        attempt: Number of the attempt; None takes the latest one of which there is output.

    Raises:
        StoreError: The study runs no command, or there is no such file on this machine.
    """
    row = store.require(study)
    if row.spec["task"] != COMMAND:
        raise StoreError(f"study: found {study}, whose task is {row.spec['task']}; allowed: a study of a command")
    folder = log_folder(row.base_folder, study, trial)
    found = logs_in(folder)
    attempts = sorted({number for number, _ in found})
    if not attempts:
        raise StoreError(f"trial: found {trial}, of which this machine has no output; looked in {folder}")
    if attempt is not None and attempt not in attempts:
        raise StoreError(f"--attempt: found {attempt}, allowed: {listed(map(str, attempts))}")
    attempt = attempts[-1] if attempt is None else attempt
    ranks = sorted(one for number, one in found if number == attempt)
    if rank not in ranks:
        raise StoreError(f"--rank: found {rank}, allowed: {listed(map(str, ranks))}")
    return found[attempt, rank]


def text_of(path: Path) -> Iterator[str]:
    """Yield what is kept of an output, oldest first."""
    for file in older(path), path:
        if file.exists():
            yield file.read_text(encoding="utf-8", errors="replace")


def followed(path: Path, is_running: Callable[[], bool]) -> Iterator[str]:
    """Yield what is kept of an output, and what comes, as long as its trial runs."""
    yield from text_of(path)
    seen, file_number = path.stat().st_size, path.stat().st_ino
    while True:
        goes_on = is_running()
        if path.exists():
            now = path.stat()
            if now.st_ino != file_number:  # it was full, and a new one was begun
                seen, file_number = 0, now.st_ino
            if now.st_size > seen:
                with path.open("rb") as file:
                    file.seek(seen)
                    new = file.read()
                seen += len(new)
                yield new.decode(errors="replace")
        if not goes_on:
            return
        time.sleep(LOOK_SECONDS)
