"""`search.advisor`: a user's program that proposes configurations. The search never waits for it.

standard input    {"space": ..., "objectives": [...], "constraints": [...], "epochs": 20,
                   "trials": [{"trial": 0, "params": {...}, "outcome": "finished", "epochs": 9, "values": {...}}]}
standard output   [{"width": 64, "learning_rate": 0.01}, ...]
"""

import json
import logging
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from search_spaces.drawing import complete, derived_seed
from search_spaces.messages import one_line, shown
from search_spaces.parameters import SpaceError
from search_spaces.space import Space
from search_spaces.untrusted_text import last_line
from studies.search.observations import Observation
from trainers.commands.command import search_path
from trainers.protocol import Params

MOST_PROPOSALS = 20
"""Largest number of proposals in an answer; others are ignored."""
MOST_FAILURES = 3
"""Number of failures in a row after which an advisor is not asked again."""
MOST_BYTES, _SHOWN = 2**20, 300
_LOOK_SECONDS = 0.05
_NICE = 10
# The alarm ends a program whose study was killed; it survives `execv`.
_LIMITED = (
    "import os, signal, sys; os.nice(int(sys.argv[1])); signal.alarm(int(sys.argv[2])); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
log = logging.getLogger(__name__)


class AdvisorError(Exception):
    """An advisor gave no usable answer; the message says why."""


class Source(Protocol):
    """A program that proposes configurations."""

    def answer(self, history: Sequence[Observation]) -> object:
        """Return the answer to a history: a list of mappings if valid. Raises AdvisorError without an answer."""
        ...

    def close(self) -> None:
        """End an `answer` that another thread is waiting for."""
        ...


class Advisor:
    """Keeps the latest proposals inside the space. An answer without any is a failure; only the first is logged."""

    def __init__(self, space: Space, source: Source, *, seed: int, background: bool = True) -> None:
        self._space, self._source, self._seed, self._background = space, source, seed, background
        self._answers = 0
        self._failures = 0
        self._has_warned = False
        self._proposals: list[Params] = []
        self._thread: threading.Thread | None = None

    def proposals(self, history: Sequence[Observation]) -> Sequence[Params]:
        """Return the latest proposals. Asks the program again in a thread, unless it is still running."""
        if self._failures < MOST_FAILURES and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._update, args=(history,), name="advisor", daemon=True)
            self._thread.start()
            if not self._background:
                self._thread.join()
        return self._proposals

    def close(self) -> None:
        """Stop the program, and never ask it again."""
        self._failures, self._has_warned = MOST_FAILURES, True
        self._source.close()

    def _update(self, history: Sequence[Observation]) -> None:
        try:
            self._proposals = self._checked(self._source.answer(history))
        except Exception as error:  # noqa: BLE001 - no mistake of an advisor ends a search
            self._failures += 1
            told = str(error) if isinstance(error, AdvisorError) else f"{type(error).__name__}: {error}"
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "search.advisor: %s. The search continues without its proposals, and after %d failures in a "
                    "row the program is not started again", one_line(told), MOST_FAILURES,
                )  # fmt: skip
        else:
            self._failures = self._failures if self._failures == MOST_FAILURES else 0

    def _checked(self, answer: object) -> list[Params]:
        if not isinstance(answer, list) or not all(isinstance(one, dict) for one in answer):
            raise AdvisorError(f"it printed {shown(answer)} instead of a list of mappings of parameters to values")
        self._answers += 1
        kept: list[Params] = []
        problem = ""
        for place, one in enumerate(answer[:MOST_PROPOSALS]):
            try:
                generator = random.Random(derived_seed("advised", self._seed, self._answers, place))
                kept.append(complete(self._space, one, generator))
            except SpaceError as error:
                problem = problem or str(error)
        if problem and not kept:
            raise AdvisorError(f"none of its {len(answer)} proposals is in the space ({problem})")
        return kept


class AdvisorProgram:
    """Runs the user's program, with limits on time and output; `about` and trials are its input."""

    def __init__(
        self, command: Sequence[str], *, seconds: float, folder: Path, about: Mapping[str, Any], metrics: Sequence[str]
    ) -> None:
        self._command, self._seconds, self._folder = tuple(command), seconds, folder
        self._about, self._metrics = about, tuple(metrics)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def answer(self, history: Sequence[Observation]) -> object:
        """Run the program on a history and return its printed JSON. Raises AdvisorError if it fails."""
        question = {**self._about, "trials": [self._told(one) for one in history]}
        # Pipes would block: the program may not read its input, and may print without end.
        with TemporaryFile() as told, TemporaryFile() as out, TemporaryFile() as err:
            told.write(json.dumps(question).encode())
            told.seek(0)
            try:
                status = self._run(told, out, err)
            except OSError as error:
                raise AdvisorError(f"{shown(self._command[0])} cannot be run: {error.strerror}") from None
            printed, complained = (_text_of(one) for one in (out, err))
        if status != 0:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
            raise AdvisorError(
                f"{shown(self._command[0])} {how}: {last_line(complained, 'it printed no error')[-_SHOWN:]}"
            )
        try:
            return json.loads(printed)
        except (ValueError, RecursionError):
            raise AdvisorError(
                f"it printed {shown(printed.strip())} on its standard output instead of a list in JSON"
            ) from None

    def close(self) -> None:
        """Kill the program, and never start it again."""
        with self._lock:
            self._is_closed = True
            self._kill()

    def _told(self, one: Observation) -> dict[str, Any]:
        values = dict(zip(self._metrics, one.values or (), strict=False))
        return {
            "trial": one.trial_id if one.snapshot is None else one.snapshot.number,
            "params": dict(one.params),
            "outcome": one.outcome,
            "epochs": 0 if one.snapshot is None else one.snapshot.epochs,
            "values": {name: value if math.isfinite(value) else None for name, value in values.items()},
        }

    def _run(self, told: IO[bytes], out: IO[bytes], err: IO[bytes]) -> int:
        name, end_at = self._command[0], time.monotonic() + self._seconds
        program = shutil.which(str(self._folder / name) if "/" in name else name, path=search_path())
        if program is None:
            raise AdvisorError(f"the program {shown(name)} is not on this machine")
        limited = [sys.executable, "-I", "-S", "-c", _LIMITED, str(_NICE), str(math.ceil(self._seconds) + 1)]
        with self._lock:
            if self._is_closed:
                raise AdvisorError("the study has ended")
            self._process = process = subprocess.Popen(  # noqa: S603 - code of the user, as a task is
                [*limited, program, *self._command[1:]],
                cwd=self._folder, stdin=told, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        try:
            while process.poll() is None:
                if time.monotonic() > end_at:
                    raise AdvisorError(f"{shown(name)} took longer than {self._seconds:g} s")
                if max(os.fstat(one.fileno()).st_size for one in (out, err)) > MOST_BYTES:
                    raise AdvisorError(f"{shown(name)} printed more than {MOST_BYTES:,} bytes")
                time.sleep(_LOOK_SECONDS)
        finally:
            with self._lock:
                self._kill()
        return process.returncode

    def _kill(self) -> None:
        """Kill the program and its child processes, and wait for its end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST_BYTES).decode(errors="replace")
