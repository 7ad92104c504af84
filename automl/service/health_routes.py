"""What machines ask: whether the service lives, whether it can answer, and its figures for Prometheus."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from automl.service.admin_routes import admin_context
from automl.service.context import ServiceContext, service_of
from automl.service.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/health", tags=["health"])
async def health() -> dict[str, Any]:
    """Say that the service lives; asks nothing else, so that a store that is away restarts nothing.

    It needs no thread, so it answers as well while all of them are taken.
    """
    return {"status": "ok"}


@router.get("/ready", tags=["health"])
def ready(context: Annotated[ServiceContext, Depends(service_of)]) -> Response:
    """Say whether the service can answer: 503 while its store does not."""
    try:
        context.store.study_row("")
    except DBAPIError:
        return JSONResponse({"status": "the store does not answer"}, status_code=503, headers={"Retry-After": "2"})
    return JSONResponse({"status": "ok"})


@router.get("/metrics", tags=["health"])
def metrics(request: Request, context: Annotated[ServiceContext, Depends(admin_context)]) -> Response:
    """Return figures for Prometheus; admins only, since they tell of all projects."""
    return Response(request.app.state.metrics.exposition(context.store), media_type=CONTENT_TYPE)
