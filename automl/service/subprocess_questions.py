"""Runs programs that read users' data or import users' code in separate processes."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from automl.service.http_errors import ConflictError, TooLargeError
from automl.service.limits import WAIT_SECONDS, Turns, held
from automl.service.workers.traces import writer
from automl.stored.open_store import stored_form
from reports.phrases import plural
from search_spaces.messages import RunError, UserError
from studies.spec.study_spec import StudySpec
from studies.spec.yaml_reader import write_yaml
from studies.storage.schema.engine import StoreAwayError
from studies.storage.writing.retrying import is_away

MOST_TAKEN = 8  # most concurrent questions; each holds a thread
_taken = threading.BoundedSemaphore(MOST_TAKEN)
_programs: set[subprocess.Popen[str]] = set()
_MEMORY_BYTES = max(2**32, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
"""Most memory of a program. Few run at once; the service needs the rest."""
_USER, _RUN, _STORE_AWAY, _TOO_LARGE = 2, 3, 75, 76  # exit codes of programs that `telling` ends
_MOST_LOGGED = 4000  # most characters of a program's output in the log; earlier output is cut
_ERRORS: dict[int, type[Exception]] = {
    _STORE_AWAY: StoreAwayError, _TOO_LARGE: TooLargeError, _USER: UserError, _RUN: RunError,
}  # fmt: skip
"""Errors by exit code; the first match counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of program, with limits on time, memory and concurrency."""

    name: str
    seconds: float
    too_late: str
    most: int
    memory_bytes: int
    places: threading.BoundedSemaphore
    turns: Turns

    @classmethod
    def of(cls, name: str, *, seconds: float, too_late: str, most: int, memory_bytes: int = _MEMORY_BYTES) -> "Kind":
        """Create a kind of program."""
        places, turns = threading.BoundedSemaphore(most), Turns(name, most=1, most_waiting=3)
        return cls(
            name=name, seconds=seconds, too_late=too_late, most=most, memory_bytes=memory_bytes, places=places,
            turns=turns,
        )  # fmt: skip


CHECK = Kind.of("check", seconds=120.0, too_late="the task's code took longer than 120 s", most=2)


def answer_of(
    module: str, arguments: Sequence[str] = (), *, text: str = "", kind: Kind = CHECK, **environment: str
) -> dict[str, Any]:
    """Run a module in a separate process, and parse its last line on stdout as JSON.

    The module's `main` reports errors through `telling`; this function raises them again.

    Raises:
        UserError: The input is wrong, or the program failed; the message is the last line of its stderr.
        RunError: The program failed for another reason.
        StoreAwayError: The store does not answer.
        ConflictError: The program took too long.
        BusyError: Too many such programs are running.
    """
    command = [sys.executable, "-m", module, *arguments]
    busy = f"{kind.name}: {plural(kind.most, kind.name)} are at work, the most at once"
    with kind.turns.turn(), held(busy, (_taken, 0.0), (kind.places, WAIT_SECONDS)):
        code, printed, told = _ended(command, text, {**os.environ, **environment}, kind)
    if code == 0:
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found
    lines = [line for line in told.splitlines() if line.strip()]
    if code in _ERRORS:
        raise _ERRORS[code](lines[-1])
    writer()("a program has failed", level="warning", module=module, exit_code=code, output=told[-_MOST_LOGGED:])
    if code < 0:
        raise UserError(f"{kind.name}: its process was ended by signal {-code}, perhaps for lack of memory")
    raise UserError(lines[-1] if lines else f"{kind.name}: its process ended with exit code {code}")


@contextmanager
def telling() -> Iterator[None]:
    """Turn an error in the `with` block into one line on stderr and an exit code."""
    try:
        yield
    except tuple(_ERRORS.values()) as error:
        _end(error, next(code for code, kind in _ERRORS.items() if isinstance(error, kind)))
    except DBAPIError as error:
        if not is_away(error):
            raise
        _end(StoreAwayError("the store does not answer now"), _STORE_AWAY)


def _end(error: Exception, code: int) -> None:
    print(" ".join(str(error).split()), file=sys.stderr)
    sys.exit(code)


def _ended(command: Sequence[str], text: str, environment: dict[str, str], kind: Kind) -> tuple[int, str, str]:
    process = subprocess.Popen(  # noqa: S603 - a program of this project
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    _programs.add(process)
    try:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (kind.memory_bytes, kind.memory_bytes))
        printed, told = process.communicate(text, timeout=kind.seconds)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ConflictError(f"{kind.name}: {kind.too_late}") from None
        raise
    finally:
        _programs.discard(process)
    return process.returncode, printed, told


def end_programs() -> None:
    """Kill all running programs."""
    for process in list(_programs):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def plan(spec: StudySpec, base_folder: str) -> dict[str, Any]:
    """Return the values of `automl launch --dry-run --json`. Raises the errors of `answer_of`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        path.write_text(write_yaml(stored_form(spec)), encoding="utf-8")
        return answer_of("automl.service.subprocess_questions", [str(path), base_folder], AUTOML_STORE=spec.store)


def main() -> None:
    """Print the plan of a spec as one line of JSON."""
    from automl.launching.dry_run import plan_of
    from automl.launching.earlier_studies import with_earlier
    from automl.launching.prepared_study import prepare
    from automl.launching.spec_reading import read_spec

    path, base_folder = Path(sys.argv[1]), Path(sys.argv[2])
    with telling():
        prepared = with_earlier(prepare(read_spec(path), source="spec", base_folder=base_folder))
        text = json.dumps(plan_of(prepared, project=prepared.spec.study.partition(".")[0]), allow_nan=False)
    print(text)


if __name__ == "__main__":
    main()
