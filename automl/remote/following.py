"""Follows a service's study until it ends: progress lines, summary, and a local launch's exit code."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from automl.remote.client import Patience, ServiceClient, UnreachableError, patiently, study_path
from automl.terminal.echo import FAILED, INTERRUPTED, echo
from automl.terminal.output import console, print_json, say_on_stderr
from automl.terminal.picture import LINE_SECONDS
from automl.terminal.study_lines import state_of
from automl.terminal.study_run_output import exit_code_of, print_ending
from automl.terminal.summary import document_of
from reports.phrases import plural, usd


@dataclass(frozen=True, kw_only=True, slots=True)
class Telling:
    """Output options. With `as_json`, stdout has only the summary."""

    as_json: bool = False
    quiet: bool = False


def take_leave_or_follow(client: ServiceClient, job: Mapping[str, Any], telling: Telling, *, detach: bool) -> None:
    """Follow a job, print its summary, and exit with its code. The job continues after Ctrl-C and `detach`."""
    if detach:
        print_json(job) if telling.as_json else echo(f"{job['study']} is {job['state']}")
        return
    if not telling.quiet:
        say_on_stderr(f"{job['study']} is queued at {client.url}")
    sys.exit(_ended(client, _followed(client, job["study"], telling), telling))


def follow_job(client: ServiceClient, name: str, telling: Telling) -> int:
    """Follow a job other than a study until it ends. Returns the exit code."""
    return _code_of(_followed(client, name, telling).get("job", {"state": "failed"}))


def _followed(client: ServiceClient, study: str, telling: Telling) -> dict[str, Any]:
    """Follow a study until it ends. Returns its last status, empty if it was deleted."""
    show = (lambda _status: None) if telling.quiet else _Lines(time.monotonic).show
    last: dict[str, Any] = {}
    try:
        for last in statuses(client, study, Patience()):
            show(last)
    except KeyboardInterrupt:
        echo(f"{study} continues without this command; `automl stop {study}` ends it", err=True)
        sys.exit(INTERRUPTED)
    return last


def statuses(client: ServiceClient, study: str, patience: Patience) -> Iterator[dict[str, Any]]:
    """Yield status changes until the study ends; reconnects. Raises RefusedError or UnreachableError."""
    while True:
        try:
            for status in client.statuses(study):
                patience.answered()
                if status is not None:
                    yield status
        except UnreachableError as error:
            patience.failed(error)
        else:
            return


class _Lines:
    """Prints a progress line on stderr when the state changes, or after `LINE_SECONDS`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._state, self._told_at = "", 0.0

    def show(self, status: dict[str, Any]) -> None:
        job, now = status["job"], self._clock()
        state = f"{job['study']} is {state_of(job)}"
        if state == self._state and now - self._told_at < LINE_SECONDS:
            return
        self._state, self._told_at = state, now
        say_on_stderr(f"{state}{_progress(status)}")


def _progress(status: dict[str, Any]) -> str:
    study, job = status["study"], status["job"]
    if study is None:
        return ""
    limit = "" if job["limit_usd"] is None else f" of {usd(job['limit_usd'])}"
    count = sum(study["trials"].values()) if isinstance(study.get("trials"), dict) else 0
    return f"; {plural(count, 'trial')}, {usd(job['spent_usd'])}{limit}"


def _code_of(job: Mapping[str, Any]) -> int:
    """Return the exit code of a job without a study record."""
    return {"done": 0, "failed": FAILED}.get(job["state"], INTERRUPTED)


def _ended(client: ServiceClient, status: dict[str, Any], telling: Telling) -> int:
    job = status.get("job")
    if job is None or job["state"] == "deleted":
        echo("the study was deleted", err=True)
        return FAILED
    if status["study"] is None:
        echo(f"{job['study']} is {state_of(job)}", err=True)
        return _code_of(job)
    record = patiently(lambda: client.record(job["study"]))
    if telling.as_json:
        print_json(document_of(record, report=None))
    elif not telling.quiet:
        print_ending(console(), record, report=client.url + "/api/v1" + study_path(record.name, "report"))
    if job["state"] == "failed":
        echo(f"{job['study']} has failed: {job['reason']}", err=True)
        return FAILED
    if job["state"] in {"stopped", "cancelled"}:
        return INTERRUPTED
    return exit_code_of(record)
