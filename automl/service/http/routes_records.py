"""Routes for `automl --server`: records, which commands print like records of a store, and confirming."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from automl.remote.record_json import written
from automl.service.http.context import studies_of
from automl.service.http.request_bodies import ConfirmBody, ConfirmQuestion
from automl.service.team_studies import TeamStudies, plain_job
from automl.service.workers import confirm_jobs
from automl.terminal.study_lines import rows_of
from studies.storage.reading.reader import list_studies

router = APIRouter(prefix="/api/v1")
Studies = Annotated[TeamStudies, Depends(studies_of)]


@router.get("/lines", tags=["studies"])
def lines(studies: Studies) -> list[dict[str, Any]]:
    """List the started studies that you may see: the JSON of `automl list --json`."""
    mine = {job.study for job in studies.jobs()}
    return rows_of(line for line in list_studies(studies.store) if line.name in mine)


@router.get("/studies/{name}/record", tags=["studies"])
def record(studies: Studies, name: str) -> Response:
    """Return the whole record of a study, for clients of the same version."""
    return Response(written(studies.record(name)), media_type="application/json")


@router.post("/studies/{name}/confirm/check", tags=["studies"])
def check_confirm(studies: Studies, name: str, body: ConfirmQuestion) -> dict[str, Any]:
    """Return the trainings of a confirmation and their cost; queues nothing."""
    return confirm_jobs.check(studies, name, body.points, body.seeds)


@router.post("/studies/{name}/confirm", tags=["studies"], status_code=202)
def confirm(studies: Studies, name: str, body: ConfirmBody) -> dict[str, Any]:
    """Queue trainings of chosen models with new seeds, to measure them on test data."""
    return plain_job(confirm_jobs.submit(studies, name, body.points, body.seeds, body.usd))
