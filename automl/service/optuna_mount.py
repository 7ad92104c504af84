"""Optuna Dashboard behind the gate: for reading, with the studies of the caller's project only.

Its page asks absolute paths, which are therefore its own here: /dashboard, /api/studies, /static and so on. Our API is
below /api/v1. Each project has an application of its own, since the dashboard keeps what it has read in memory. What
it keeps for a whole process, it keeps by the ids of studies, which never come back here.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Container
from typing import Annotated, Any

from a2wsgi import WSGIMiddleware
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from automl.dashboard import optuna_dashboard_of
from automl.service.context import ServiceContext, studies_of
from automl.service.errors import MissingError
from automl.service.gate import SAFE_METHODS, Asgi, Receive, Scope, Send
from automl.service.lasting_ids import LastingIds
from automl.service.optuna_storage import ProjectStorage
from automl.service.rendering import PageRoute, to
from automl.service.team_studies import TeamStudies
from studies.queueing import job_rows
from studies.queueing.tokens import Identity
from studies.storage.optuna_view import open_storage
from studies.storage.store import Store

router = APIRouter(route_class=PageRoute, include_in_schema=False)
Studies = Annotated[TeamStudies, Depends(studies_of)]
PATHS = ("/dashboard", "/dashboard/{rest:path}", "/api/meta", "/api/studies", "/api/studies/{rest:path}",
         "/csv/{rest:path}", "/static/{rest:path}", "/favicon.ico")  # fmt: skip
"""Paths of Optuna Dashboard, as the application routes them."""
_PLAIN = re.compile(r"/dashboard(/.*)?|/static/.+|/favicon\.ico|/api/meta|/api/studies/?")
_OF_STUDY = re.compile(r"/(?:api/studies|csv)/([0-9]{1,9})(?:/param_importances|/plot/[a-z_]+)?/?")
_THREADS = 4


class OptunaDashboard:
    """Optuna Dashboard as an ASGI application, which asks the identity that the gate has found.

    Args:
        context: The service.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._making = threading.Lock()
        self._storage: Any = None
        self._ids = LastingIds()
        self._projects: dict[str | None, tuple[ProjectStorage, Asgi]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a page, a file or the data of a study."""
        refused = await asyncio.to_thread(self._refusal, scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        _, application = await asyncio.to_thread(self._of, scope["state"]["identity"])
        await application(scope, receive, send)

    def id_of(self, identity: Identity, study: str) -> int:
        """Return the id of a study in Optuna Dashboard.

        Raises:
            MissingError: There is no such study that may be seen, or its view is not there yet.
        """
        try:
            return self._of(identity)[0].get_study_id_from_name(study)
        except KeyError:
            raise MissingError(f"study: found {study!r}, of which Optuna Dashboard has nothing yet") from None

    def _refusal(self, scope: Scope) -> Response | None:
        """Why there is no answer; None if there is one."""
        if scope["method"] not in SAFE_METHODS:
            return JSONResponse({"reason": "Optuna Dashboard is for reading here"}, status_code=403)
        if _PLAIN.fullmatch(scope["path"]):
            return None
        of_study = _OF_STUDY.fullmatch(scope["path"])
        try:
            if of_study is not None:
                self._of(scope["state"]["identity"])[0].get_study_name_from_id(int(of_study[1]))
                return None
        except KeyError:
            pass
        return JSONResponse({"reason": "there is no such study that you may see"}, status_code=404)

    def _of(self, identity: Identity) -> tuple[ProjectStorage, Asgi]:
        """Storage and application of a project; None stands for all of them, as an admin sees them."""
        project = None if identity.is_admin else identity.project
        with self._making:
            if project not in self._projects:
                self._storage = self._storage or open_storage(self._context.store.url)
                visible = _Visible(self._context.store, project)
                storage = ProjectStorage(self._storage, visible, self._ids)
                dashboard: Any = optuna_dashboard_of(storage)
                application: Any = WSGIMiddleware(dashboard, workers=_THREADS)
                self._projects[project] = storage, application
            return self._projects[project]


class _All:
    """Names of studies, all of them."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)


class _Visible:
    """Returns the names of the studies that a project may see.

    Args:
        store: Store that holds the jobs.
        project: Name of the project; None may see all of them.
    """

    def __init__(self, store: Store, project: str | None) -> None:
        self._store, self._project = store, project

    def __call__(self) -> Container[str]:
        if self._project is None:
            return _All()
        with self._store.snapshot() as connection:
            return job_rows.names(connection, self._project)


def mount(app: FastAPI) -> None:
    """Let an application answer the paths of Optuna Dashboard."""
    app.state.optuna = OptunaDashboard(app.state.context)
    app.include_router(router)
    for path in PATHS:
        app.add_route(path, app.state.optuna, include_in_schema=False)


@router.get("/optuna/")
def all_studies() -> Response:
    """Lead to the list of studies in Optuna Dashboard."""
    return to("/dashboard")


@router.get("/optuna/{name}")
def one_study(request: Request, studies: Studies, name: str) -> Response:
    """Lead to a study in Optuna Dashboard."""
    study = studies.job(name).study
    return to(f"/dashboard/studies/{request.app.state.optuna.id_of(studies.identity, study)}")
