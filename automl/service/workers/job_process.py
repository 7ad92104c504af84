"""Process that runs one job of the queue with its slots and money, and stores the outcome.

    python -m automl.service.workers.job_process RUN_ID        with the store's URL in AUTOML_STORE

When its worker dies, this process gets SIGTERM, and stops with checkpoints; another worker continues.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from automl.launching.earlier_studies import with_earlier
from automl.launching.launch_or_resume import find_or_create
from automl.launching.prepared_study import Prepared, prepare
from automl.launching.study_run import Outcome, Watcher, drive
from automl.service.workers.confirm_jobs import run_confirm_job
from automl.service.workers.traces import writer
from automl.signals import interrupting_signals
from automl.stored.open_store import from_store
from automl.terminal.study_run_output import Chronicle
from automl.terminal.texts import late_views_text
from search_spaces.messages import StoppedError, UserError
from studies.queueing.job_queue import JobQueue
from studies.queueing.jobs import Job, RunOutcome, study_slots
from studies.records.records import NANO
from studies.storage.schema.engine import StoreAwayError, StoreError
from studies.storage.study_store import Store
from studies.storage.writing.retrying import is_away, retry

WORKER_PID = "AUTOML_WORKER_PID"  # environment variable with the process id of the worker
STORE_AWAY, INTERRUPTED = 75, 130
"""Exit codes without a stored outcome: the store was away, or the process was terminated."""
MARGIN_SECONDS, MARGIN_SHARE = 1.0, 0.005
"""Seconds of pool time kept unspent below a cap, and their largest share of the run's money."""
_PR_SET_PDEATHSIG = 1


def run(store: Store, run_id: int) -> RunOutcome:
    """Run a job's study until its end. After DBAPIError or StoreAwayError, another run must continue."""
    queue = JobQueue(store)
    job = next((one for one in queue.jobs(states=("running",)) if one.run is not None and one.run.id == run_id), None)
    if job is None:
        raise StoreError(f"the queue has no open run {run_id}")
    log = writer(study=job.study, project=job.project, user=job.user)
    warn = partial(log, level="warning")

    def end(outcome: RunOutcome, reason: str) -> None:
        retry(lambda: queue.end_run(run_id, outcome, reason), warn=warn)

    try:
        outcome, reason = _driven(queue, job, log)
    except (StoppedError, KeyboardInterrupt) as error:
        was_stopped = isinstance(error, StoppedError) and error.by_command
        outcome, reason = retry(lambda: _when_interrupted(queue, job, was_stopped=was_stopped), warn=warn), ""
    except StoreAwayError:
        raise
    except UserError as error:
        outcome, reason = "failed", " ".join(str(error).split())
    except Exception as error:
        if not (isinstance(error, DBAPIError) and is_away(error)):
            end("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise
    log(f"the run has ended: {outcome}", reason=reason or None)
    end(outcome, reason)
    return outcome


def _driven(queue: JobQueue, job: Job, log: Callable[..., None]) -> tuple[RunOutcome, str]:
    if job.kind == "confirm":
        return run_confirm_job(queue, job, log)
    chronicle = Chronicle(log, with_figures=True)
    watcher = Watcher(on_commit=chronicle.on_commit, say=log, warn=lambda line: log(line, level="warning"))
    prepared = _prepared(queue, job)
    row = queue.store.study_row(job.study)
    if row is None:  # a stored study keeps its spec, whose budget may have changed since its launch
        row = find_or_create(queue.store, with_earlier(prepared))
    for warning in prepared.warnings:
        watcher.warn(warning)
    ended = drive(queue.store, row, _within(prepared, job), watcher)
    if ended.views_behind:
        watcher.warn(late_views_text(ended.views_behind))
    return _outcome(queue, job, ended)


def _prepared(queue: JobQueue, job: Job) -> Prepared:
    row = queue.store.study_row(job.study)
    submitted, base_folder = queue.spec_of(job)
    spec = from_store(submitted if row is None else row.spec, job.study)
    resources = spec.resources.model_copy(update={"slots": study_slots(job)})
    spec = spec.model_copy(update={"store": queue.store.url, "resources": resources})
    return prepare(spec, source=job.study, base_folder=Path(base_folder))


def _within(prepared: Prepared, job: Job) -> Prepared:
    """Return the study with the run's money as its budget. The stored budget stays unchanged."""
    cap = None if job.run is None else job.run.cap_nano_usd
    if cap is None:
        return prepared
    if cap != job.limit_nano_usd:
        cap -= _margin(cap - job.ledger_nano_usd, prepared)
    budget = prepared.spec.budget.model_copy(update={"usd": cap / NANO})
    return replace(prepared, spec=prepared.spec.model_copy(update={"budget": budget}))


def _margin(rest_nano_usd: int, prepared: Prepared) -> int:
    """Return the nano-dollars to keep back, because a busy machine may release devices late."""
    per_second = prepared.place.slots * prepared.place.usd_per_slot_hour * NANO / 3600.0
    return round(min(MARGIN_SECONDS * per_second, MARGIN_SHARE * rest_nano_usd))


def _outcome(queue: JobQueue, job: Job, ended: Outcome) -> tuple[RunOutcome, str]:
    record = ended.record
    if record.state == "failed":
        return "failed", record.why_ended or ""
    if record.state == "closed":
        outcome = outcome_of_closed(job, record.stop_reason)
        return outcome, "" if outcome == "capped" else record.why_ended or ""
    was_stopped = record.stop_reason == "stopped" and not ended.interrupted  # by `automl stop`
    warn = partial(writer(study=job.study), level="warning")
    return retry(lambda: _when_interrupted(queue, job, was_stopped=was_stopped), warn=warn), ""


def outcome_of_closed(job: Job, stop_reason: str | None) -> RunOutcome:
    """Return a closed study's outcome: "capped" if its owner's money ran out before its budget, else "done"."""
    cap = None if job.run is None else job.run.cap_nano_usd
    is_capped = stop_reason == "budget_usd" and cap is not None and cap != job.limit_nano_usd
    return "capped" if is_capped else "done"


def _when_interrupted(queue: JobQueue, job: Job, *, was_stopped: bool) -> RunOutcome:
    """Return the outcome of a run that was interrupted, or ended by `automl stop`."""
    match queue.require(job.study).request:
        case "stop":
            return "stopped"
        case "cancel":
            return "cancelled"
        case _:
            return "stopped" if was_stopped else "preempted"


def drain_when_worker_dies() -> None:
    """Let the kernel send SIGTERM to this process when the worker dies (Linux: prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(os.environ.get(WORKER_PID, os.getppid())):  # the worker died before this call
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the job of the run id in the command line."""
    try:
        with interrupting_signals():  # until the controller takes them as drain requests
            drain_when_worker_dies()
            outcome = run(Store(os.environ["AUTOML_STORE"]), int(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except StoreAwayError as error:
        print(error, file=sys.stderr)
        sys.exit(STORE_AWAY)
    except DBAPIError as error:
        if not is_away(error):
            raise
        print(error.orig, file=sys.stderr)
        sys.exit(STORE_AWAY)
    sys.exit(0 if outcome in {"done", "stopped", "cancelled", "preempted", "capped"} else 1)


if __name__ == "__main__":
    main()
