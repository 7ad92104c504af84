"""Routes of studies: submit, list, read, watch, stop, resume, confirm, cancel, delete."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from sqlalchemy.exc import DBAPIError

from automl.remote.record_json import written
from automl.service.http.context import refuse_other_sites, studies_of
from automl.service.http.request_bodies import (
    ConfirmBody,
    ConfirmQuestion,
    EnqueueBody,
    ModelQuestion,
    PriorityBody,
    ResumeBody,
    SubmissionBody,
    TrainingBody,
)
from automl.service.http_errors import MissingError
from automl.service.model_files import Download, model_archive
from automl.service.subprocess_questions import plan
from automl.service.team_studies import TeamStudies, plain_job
from automl.service.workers import confirm_jobs
from automl.stored.rank_logs import log_of, text_of
from automl.terminal.study_lines import rows_of
from reports.page import render
from search_spaces.messages import UserError
from studies.queueing.access_tokens import lasts
from studies.queueing.jobs import OVER
from studies.storage.reading.reader import list_studies as stored_studies

LOOK_SECONDS = 1.0
SILENCE_SECONDS = 15.0
"""Most seconds between events, so that proxies keep the connection, and between checks of the caller's token."""
router = APIRouter(prefix="/api/v1")
Studies = Annotated[TeamStudies, Depends(studies_of)]
Number = Annotated[int, Query(ge=0, le=10**9)]
Attempt = Annotated[int, Query(ge=1, le=10**9)]
Seed = Annotated[int, Query(ge=0, lt=2**31)]
LONGEST_LOG = 2**20  # most characters of a log in an answer; older output is cut


async def events(studies: TeamStudies, name: str) -> AsyncIterator[str]:
    """Yield the events of a study: `status` with the answer of `GET /studies/NAME`, then `end`.

    Sends nothing while the store is away. Stops without `end` when the caller's token becomes invalid.
    """
    seen: tuple[object, ...] = ()
    silent = asked = 0.0
    while True:
        try:
            if asked >= SILENCE_SECONDS:
                asked = 0.0
                if not await asyncio.to_thread(lasts, studies.store, studies.identity):
                    return
            now = await asyncio.to_thread(studies.version, name)
            if now != seen:
                status = await asyncio.to_thread(studies.status, name)
                seen, silent = now, 0.0
                yield f"event: status\ndata: {json.dumps(status, default=str)}\n\n"
                if status["job"]["state"] in OVER:
                    break
        except MissingError:  # it was deleted
            break
        except DBAPIError:  # the answer has begun, so no HTTP status can report the error: try again
            pass
        if silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)
        silent += LOOK_SECONDS
        asked += LOOK_SECONDS
    yield "event: end\ndata: {}\n\n"


@router.get("/lines", tags=["studies"])
def lines(studies: Studies) -> list[dict[str, Any]]:
    """List the started studies that you may see, as `automl list --json` does."""
    mine = {job.study for job in studies.jobs()}
    return rows_of(line for line in stored_studies(studies.store) if line.name in mine)


@router.get("/studies/{name}/record", tags=["studies"])
def record(studies: Studies, name: str) -> Response:
    """Return a study's whole record, for clients of the same version."""
    return Response(written(studies.record(name)), media_type="application/json")


@router.post("/studies/{name}/confirm/check", tags=["studies"])
def check_confirm(studies: Studies, name: str, body: ConfirmQuestion) -> dict[str, Any]:
    """Return the trainings of a confirmation, and their cost, without queueing them."""
    return confirm_jobs.check(studies, name, body.points, body.seeds)


@router.post("/studies/{name}/confirm", tags=["studies"], status_code=202)
def confirm(studies: Studies, name: str, body: ConfirmBody) -> dict[str, Any]:
    """Queue trainings of models with new seeds, measured on test data."""
    return plain_job(confirm_jobs.submit(studies, name, body.points, body.seeds, body.usd))


@router.get("/studies", tags=["studies"])
def list_studies(studies: Studies) -> list[dict[str, Any]]:
    """List the jobs that you may see, oldest first."""
    return [plain_job(job) for job in studies.jobs()]


@router.post("/studies", tags=["studies"], status_code=202)
def submit(studies: Studies, body: SubmissionBody) -> dict[str, Any]:
    """Queue a study."""
    return plain_job(studies.submit(body.spec, code=body.code, priority=body.priority))


@router.post("/studies/check", tags=["studies"])
def check(studies: Studies, body: SubmissionBody) -> dict[str, Any]:
    """Return a study's plan and cost, as `automl launch --dry-run --json` does, without queueing it."""
    spec, base_folder = studies.admitted(body.spec, code=body.code)
    return plan(spec, base_folder)


@router.post("/trainings", tags=["studies"], status_code=202)
def train(studies: Studies, body: TrainingBody) -> dict[str, Any]:
    """Queue a single training."""
    job = studies.submit(body.spec, code=body.code, priority=body.priority, kind="training")
    return plain_job(job)


@router.get("/queue", tags=["studies"])
def queue(studies: Studies) -> list[dict[str, Any]]:
    """List the waiting jobs in the order in which they will start."""
    return [plain_job(job) for job in studies.waiting()]


@router.get("/studies/{name}", tags=["studies"])
def status(studies: Studies, name: str) -> dict[str, Any]:
    """Return a study's job, and its status as in `automl status --json`."""
    return studies.status(name)


@router.delete("/studies/{name}", tags=["studies"])
def delete(studies: Studies, name: str) -> dict[str, Any]:
    """Delete an ended study permanently. Its cost still counts in the accounts."""
    return studies.delete(name)


@router.post("/studies/{name}/stop", tags=["studies"])
def stop(studies: Studies, name: str) -> dict[str, Any]:
    """Stop a study with checkpoints. It can be resumed."""
    return plain_job(studies.stop(name))


@router.post("/studies/{name}/cancel", tags=["studies"])
def cancel(studies: Studies, name: str) -> dict[str, Any]:
    """Cancel a study permanently. Its results remain."""
    return plain_job(studies.cancel(name))


@router.post("/studies/{name}/resume", tags=["studies"])
def resume(studies: Studies, name: str, body: ResumeBody) -> dict[str, Any]:
    """Queue an ended study again."""
    return plain_job(studies.resume(name, body.overrides))


@router.post("/studies/{name}/priority", tags=["studies"])
def set_priority(studies: Studies, name: str, body: PriorityBody) -> dict[str, Any]:
    """Change the priority of a job."""
    return plain_job(studies.set_priority(name, body.priority))


@router.post("/studies/{name}/enqueue", tags=["studies"])
def enqueue(studies: Studies, name: str, body: EnqueueBody) -> dict[str, Any]:
    """Ask a study to train a trial with these parameters next."""
    return studies.enqueue(name, body.params)


@router.get("/studies/{name}/events", tags=["studies"])
def watch(studies: Studies, name: str) -> StreamingResponse:
    """Send a study's status whenever it changes, as server-sent events, until the study has ended."""
    studies.job(name)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(studies, name), media_type="text/event-stream", headers=headers)


@router.get("/studies/{name}/report", tags=["studies"], response_class=HTMLResponse)
def report(studies: Studies, name: str) -> HTMLResponse:
    """Return a study's HTML report, from the last commit."""
    return HTMLResponse(render(studies.record(name)), headers={"Cache-Control": "no-store"})


@router.get(
    "/studies/{name}/model",
    tags=["studies"],
    response_class=StreamingResponse,
    dependencies=[Depends(refuse_other_sites)],
    responses={200: {"content": {"application/zip": {}}, "description": "The model, and `export.json` about it."}},
)
def export(studies: Studies, name: str, asked: Annotated[ModelQuestion, Query()]) -> StreamingResponse:
    """Return a model as a ZIP archive. Its checkpoint must be on the service's machine."""
    return Download(model_archive(studies, name, asked))


@router.get("/studies/{name}/trials", tags=["trials"])
def trials(studies: Studies, name: str) -> list[dict[str, Any]]:
    """List the trials of a study."""
    return studies.trials(name)


@router.get("/studies/{name}/trials/{trial}", tags=["trials"])
def explain(studies: Studies, name: str, trial: int) -> dict[str, Any]:
    """Explain why a trial continued, was paused, stopped or failed."""
    return studies.explain(name, trial)


@router.post("/studies/{name}/trials/{trial}/cancel", tags=["trials"])
def cancel_trial(studies: Studies, name: str, trial: str) -> dict[str, Any]:
    """Stop a trial permanently. The study continues."""
    return studies.cancel_trial(name, trial)


@router.get("/studies/{name}/trials/{trial}/logs", tags=["trials"], response_class=PlainTextResponse)
def logs(  # noqa: PLR0917 - FastAPI passes each parameter by name
    studies: Studies, name: str, trial: int, rank: Number = 0, attempt: Attempt | None = None, seed: Seed | None = None
) -> PlainTextResponse:
    """Return a rank's output, of a trial or a confirming training, if it is on the service's machine."""
    record = studies.record(name)
    try:
        path = log_of(studies.store, record.name, trial, rank, attempt=attempt, seed=seed)
    except UserError as error:
        raise MissingError(str(error)) from None
    return PlainTextResponse("".join(text_of(path))[-LONGEST_LOG:])
