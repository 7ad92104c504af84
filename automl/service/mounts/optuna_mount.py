"""Serves Optuna Dashboard inside the service: read-only, limited to the caller's project.

The dashboard's page uses absolute paths (/dashboard, /api/studies, /static); the service's API is below /api/v1. The
dashboard caches in memory: each project has its own application, and study ids never repeat.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NoReturn, TypeVar

from a2wsgi import WSGIMiddleware
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from automl.dashboard_server import optuna_dashboard_of
from automl.service.http.context import ServiceContext, studies_of
from automl.service.http.gate import SAFE_METHODS, Asgi, Receive, Scope, Send
from automl.service.http_errors import MissingError
from automl.service.pages.rendering import PageRoute, to
from automl.service.team_studies import TeamStudies
from studies.queueing import job_rows
from studies.queueing.access_tokens import Identity
from studies.storage.views.optuna_view import UID_ATTRIBUTE, open_storage

Found = TypeVar("Found")
router = APIRouter(route_class=PageRoute, include_in_schema=False)
Studies = Annotated[TeamStudies, Depends(studies_of)]
PATHS = ("/dashboard", "/dashboard/{rest:path}", "/api/meta", "/api/studies", "/api/studies/{rest:path}",
         "/csv/{rest:path}", "/static/{rest:path}", "/favicon.ico")  # fmt: skip
"""Paths of Optuna Dashboard."""
_PLAIN = re.compile(r"/dashboard(/.*)?|/static/.+|/favicon\.ico|/api/meta|/api/studies/?")
_OF_STUDY = re.compile(r"/(?:api/studies|csv)/([0-9]{1,9})(?:/param_importances|/plot/[a-z_]+)?/?")
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """Distinguishes studies that had the same id at different times. `uid` is empty without a mirrored study."""

    name: str
    uid: str


@dataclass(slots=True)
class LastingIds:
    """Study ids for Optuna Dashboard that never repeat.

    SQLite gives a deleted study's id to the next study. Optuna Dashboard caches trials, search spaces and importances
    by id (importances even across projects), and would show the deleted study.
    """

    _outer: dict[tuple[int, Mark], int] = field(default_factory=dict)
    _inner: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def told(self, inner: int, mark: Mark) -> int:
        """Return the dashboard's id for the study that has the id `inner` in Optuna's tables now."""
        with self._lock:
            outer = self._outer.get((inner, mark))
            if outer is None:
                outer = inner if inner not in self._inner else max(self._inner) + 1
                self._outer[inner, mark], self._inner[outer] = outer, inner
            return outer

    def meant(self, outer: int) -> int:
        """Return the id in Optuna's tables for a dashboard's id; an unknown id unchanged."""
        with self._lock:
            return self._inner.get(outer, outer)


class ReadOnlyError(RuntimeError):
    """Optuna's copy of a study is read-only."""


class ProjectStorage(BaseStorage):
    """Optuna storage that raises KeyError for other projects' studies. All caches of the process share `ids`."""

    def __init__(self, inner: BaseStorage, visible: Callable[[], Container[str]], ids: LastingIds) -> None:
        self._inner, self._visible, self._ids = inner, visible, ids

    def _read(self, study_id: int, read: Callable[[int], Found]) -> Found:
        """Read data of a visible study. Checks visibility last, since another study may take the id during the read."""
        inner = self._ids.meant(study_id)
        found = read(inner)
        mark = _mark(self._inner.get_study_name_from_id(inner), self._inner.get_study_user_attrs(inner))
        if mark.name not in self._visible() or self._ids.told(inner, mark) != study_id:
            raise KeyError(study_id)
        return found

    def get_all_studies(self) -> list[Any]:
        """Return the studies of the caller's project, by id."""
        visible = self._visible()
        own = [study for study in self._inner.get_all_studies() if study.study_name in visible]
        for study in sorted(own, key=_id_of):
            study._study_id = self._ids.told(_id_of(study), _mark(study.study_name, study.user_attrs))  # noqa: SLF001
        return sorted(own, key=_id_of)

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return a visible study's id."""
        if study_name not in self._visible():
            raise KeyError(study_name)
        inner = self._inner.get_study_id_from_name(study_name)
        return self._ids.told(inner, _mark(study_name, self._inner.get_study_user_attrs(inner)))

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return a visible study's name."""
        return self._read(study_id, self._inner.get_study_name_from_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return a visible study's directions."""
        return self._read(study_id, self._inner.get_study_directions)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return a visible study's user attributes."""
        return self._read(study_id, self._inner.get_study_user_attrs)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return a visible study's system attributes."""
        return self._read(study_id, self._inner.get_study_system_attrs)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return a visible study's trials."""
        return self._read(study_id, lambda inner: self._inner.get_all_trials(inner, deepcopy=deepcopy, states=states))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Raise KeyError: a trial's id does not name its study, and no page asks for a single trial."""
        raise KeyError(trial_id)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError("this storage is read-only")

    create_new_study = delete_study = set_study_user_attr = set_study_system_attr = _refuse
    create_new_trial = set_trial_param = set_trial_state_values = set_trial_intermediate_value = _refuse
    set_trial_user_attr = set_trial_system_attr = _refuse


def _id_of(study: Any) -> int:
    return int(study._study_id)  # noqa: SLF001 - Optuna has no public name for it


def _mark(name: str, attributes: Mapping[str, Any]) -> Mark:
    return Mark(name, str(attributes.get(UID_ATTRIBUTE, "")))


class OptunaDashboard:
    """Optuna Dashboard as an ASGI application, limited to studies visible to the caller."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._making = threading.Lock()
        self._storage: Any = None
        self._ids = LastingIds()
        self._projects: dict[str | None, tuple[ProjectStorage, Asgi]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a page, file or study."""
        refused = await asyncio.to_thread(self._refusal, scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        _, application = await asyncio.to_thread(self._of, scope["state"]["identity"])
        await application(scope, receive, send)

    def id_of(self, identity: Identity, study: str) -> int:
        """Return a study's id in Optuna Dashboard. Raises MissingError if it is invisible, or not copied yet."""
        try:
            return self._of(identity)[0].get_study_id_from_name(study)
        except KeyError:
            raise MissingError(f"Optuna Dashboard has no data of {study!r} yet. Try again in some seconds") from None

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in SAFE_METHODS:
            return JSONResponse({"reason": "Optuna Dashboard is read-only here"}, status_code=403)
        if _PLAIN.fullmatch(scope["path"]):
            return None
        of_study = _OF_STUDY.fullmatch(scope["path"])
        try:
            if of_study is not None:
                self._of(scope["state"]["identity"])[0].get_study_name_from_id(int(of_study[1]))
                return None
        except KeyError:
            pass
        return JSONResponse({"reason": "this study does not exist, or you may not see it"}, status_code=404)

    def _of(self, identity: Identity) -> tuple[ProjectStorage, Asgi]:
        """Return storage and application of the caller's project; for admins, of all projects."""
        project = None if identity.is_admin else identity.project
        with self._making:
            if project not in self._projects:
                self._storage = self._storage or open_storage(self._context.store.url)
                storage = ProjectStorage(self._storage, partial(self._visible, project), self._ids)
                dashboard: Any = optuna_dashboard_of(storage)
                application: Any = WSGIMiddleware(dashboard, workers=_THREADS)
                self._projects[project] = storage, application
            return self._projects[project]

    def _visible(self, project: str | None) -> Container[str]:
        if project is None:
            return _All()
        with self._context.store.snapshot() as connection:
            return job_rows.names(connection, project)


class _All:
    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)


def mount(app: FastAPI) -> None:
    """Route `PATHS` to Optuna Dashboard."""
    app.state.optuna = OptunaDashboard(app.state.context)
    app.include_router(router)
    for path in PATHS:
        app.add_route(path, app.state.optuna, include_in_schema=False)


@router.get("/optuna/")
def all_studies() -> Response:
    """Redirect to the list of studies in Optuna Dashboard."""
    return to("/dashboard")


@router.get("/optuna/{name}")
def one_study(request: Request, studies: Studies, name: str) -> Response:
    """Redirect to a study in Optuna Dashboard."""
    study = studies.job(name).study
    return to(f"/dashboard/studies/{request.app.state.optuna.id_of(studies.identity, study)}")
