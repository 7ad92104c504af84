"""Web pages for people: login, queue, study and trial."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse

from automl.exporting.exports import Target
from automl.service.http.context import ServiceContext, refuse_other_sites, service_of, studies_of
from automl.service.http.gate import COOKIE
from automl.service.http.request_bodies import LimitBody, ModelQuestion, Point, RotationBody, TokenBody, filled_in
from automl.service.http.routes_admin import AdminContext, make_token, revoke_token, rotate_token
from automl.service.http_errors import MissingError
from automl.service.model_files import Download, model_archive
from automl.service.pages.rendering import PAGES, PageRoute, form_of, one_line, page, status_of, to
from automl.service.pages.study_view import spending, trial_lines_of, view_of
from automl.service.team_studies import TeamStudies, plain_account
from automl.stored.rank_logs import log_of, text_of
from reports.front_picture import STYLE
from reports.page_templates import redacted
from search_spaces.messages import RunError, UserError, found
from studies.queueing import access_tokens
from studies.queueing.job_queue import JobQueue
from studies.queueing.jobs import OVER
from studies.records.records import StudyRecord
from studies.spec.spec_errors import SpecError
from trainers.commands.command import COMMAND

router = APIRouter(route_class=PageRoute, include_in_schema=False)
Studies = Annotated[TeamStudies, Depends(studies_of)]
Context = Annotated[ServiceContext, Depends(service_of)]
Form = Annotated[Mapping[str, str], Depends(form_of)]
COOKIE_SECONDS = 7 * 86_400  # longest browser session in seconds; it ends earlier if its token does
MOST_ENDED = 50  # most ended jobs on the queue page, latest first
LONGEST_LOG = 2**16  # most characters of a rank's output on the page; older output is cut


@router.get("/service.css")
def style() -> Response:
    """Return the style sheet."""
    return Response((PAGES / "service.css").read_text() + STYLE.read_text(), media_type="text/css")


@router.get("/service.js")
def script() -> Response:
    """Return the script."""
    return FileResponse(PAGES / "service.js", media_type="text/javascript")


@router.get("/login")
def login_page(request: Request) -> Response:
    """Ask for a token."""
    return page(request, "login.html")


@router.post("/login")
def login(request: Request, context: Context, form: Form) -> Response:
    """Start a session for a valid token. Scripts and other sites cannot read its cookie."""
    session = access_tokens.begin_session(context.store, form.get("token", ""), COOKIE_SECONDS)
    if session is None:
        problem = "This token is not valid: it may be mistyped, expired or revoked."
        return page(request, "login.html", status=401, problem=problem)
    answer = to("/")
    is_secure = _is_https(request)
    answer.set_cookie(COOKIE, session, max_age=COOKIE_SECONDS, httponly=True, samesite="strict", secure=is_secure)
    return answer


def _is_https(request: Request) -> bool:
    """Return whether the browser uses HTTPS. Trusts the proxy's header: forgery only makes the cookie stricter."""
    client_scheme = request.headers.get("x-forwarded-proto", "").strip().lower()
    return request.url.scheme == "https" or client_scheme.startswith("https")


@router.post("/logout")
def logout(request: Request, context: Context) -> Response:
    """End the user's session, and delete its cookie."""
    access_tokens.end_session(context.store, request.cookies.get(COOKIE, ""))
    answer = to("/login")
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_https(request))
    return answer


@router.get("/")
def queue_page(request: Request, studies: Studies, context: Context) -> Response:
    """Show running jobs, waiting jobs in the order of their start, and ended jobs."""
    jobs = studies.jobs()
    ended = sorted((job for job in jobs if job.state in OVER), key=lambda job: job.ended_at or 0.0, reverse=True)
    running = [view_of(job, None) for job in jobs if job.state == "running"]
    return page(
        request,
        "queue.html",
        running=running,
        waiting=[view_of(job, None) for job in studies.waiting()],
        ended=[view_of(job, None) for job in ended[:MOST_ENDED]],
        older=max(len(ended) - MOST_ENDED, 0),
        workers=JobQueue(context.store).workers(),
    )


@router.get("/studies/{name}")
def study_page(request: Request, studies: Studies, name: str) -> Response:
    """Show a study: its state, money, models and trials."""
    return _study_page(request, studies, name)


def _study_page(request: Request, studies: TeamStudies, name: str, problem: str = "", status: int = 200) -> Response:
    job = studies.job(name)
    record: StudyRecord | None = None
    with suppress(MissingError):  # it has not started yet
        record = studies.record(name)
    mlflow = "" if record is None else next((view.link for view in record.views if view.view == "mlflow"), "")
    return page(
        request,
        "study.html",
        status=status,
        view=view_of(job, record),
        mlflow=mlflow if mlflow.startswith(("http://", "https://")) else "",
        problem=problem,
    )


@router.post("/studies/{name}/{action}")
def change_study(request: Request, studies: Studies, form: Form, name: str, action: str) -> Response:
    """Stop, cancel, resume or delete a study."""
    here = f"/studies/{quote(name)}"
    try:
        if action == "delete":
            if form.get("sure") != "yes":
                raise UserError("Nothing was deleted. Tick the box first")
            studies.delete(name)
            here = "/"
        elif action == "resume":
            studies.resume(name, [f"budget.{key}={form[key]}" for key in ("usd", "hours", "trials") if form.get(key)])
        elif action in {"stop", "cancel"}:
            (studies.stop if action == "stop" else studies.cancel)(name)
        else:
            raise MissingError(f"action: found {action!r}, allowed: stop, cancel, resume, delete")
    except (UserError, RunError) as error:
        return _study_page(request, studies, name, one_line(error), status_of(error))
    return to(here)


@router.get("/studies/{name}/trials/{number}")
def trial_page(
    request: Request, studies: Studies, name: str, number: int, rank: Annotated[int, Query(ge=0, le=10**6)] = 0
) -> Response:
    """Show the reasons for a trial's state, and the output of a rank."""
    explained: dict[str, Any] = studies.explain(name, number)
    record = redacted(studies.record(name))
    trial = next(one for one in record.started if one.number == number)
    text, why_none = _output(studies, record.name, number, rank)
    return page(
        request,
        "trial.html",
        study=record.name,
        trial=trial,
        line=trial_lines_of(record, [trial])[0],
        objectives=[one.metric for one in record.objectives],
        explained=explained,
        ranks=range(trial.attempts[-1].world_size if trial.attempts else trial.world_size),
        rank=rank,
        output=text,
        no_output=why_none,
    )


def _output(studies: TeamStudies, name: str, number: int, rank: int) -> tuple[str, str]:
    try:
        return "".join(text_of(log_of(studies.store, name, number, rank)))[-LONGEST_LOG:], ""
    except UserError as error:
        return "", one_line(error)


@router.get("/studies/{name}/models/{point}", dependencies=[Depends(refuse_other_sites)])
def download_model(studies: Studies, name: str, point: Point) -> Response:
    """Return a model as an archive: loadable without training code, or the files of a command."""
    form: Target = "weights" if studies.record(name).spec.get("task") == COMMAND else "package"
    return Download(model_archive(studies, name, ModelQuestion(point=point, format=form)))


@router.post("/studies/{name}/trials/{number}/cancel")
def cancel_trial(studies: Studies, name: str, number: str) -> Response:
    """Stop a trial permanently. The study continues."""
    studies.cancel_trial(name, number)
    return to(f"/studies/{quote(name)}")


@router.get("/spend")
def spend_page(request: Request, studies: Studies) -> Response:
    """Show the spending of users and projects, with their limits."""
    return _spend_page(request, studies)


def _spend_page(request: Request, studies: TeamStudies, problem: str = "", status: int = 200) -> Response:
    plain = [plain_account(one) for one in studies.accounts()]
    lines = spending(studies.jobs_that_cost(), {(one["kind"], one["name"]): one for one in plain})
    return page(request, "spend.html", status=status, lines=lines, problem=problem)


@router.post("/spend")
def set_limit(request: Request, studies: Studies, form: Form) -> Response:
    """Limit the spending of a user or a project. An empty value removes the limit."""
    try:
        kind, name = form.get("kind", ""), form.get("name", "")
        if kind not in {"user", "project"}:
            raise SpecError("form", ("kind",), found(kind, "user, project"))
        body = filled_in(LimitBody, {"usd": form.get("usd") or None})
        if not name:
            raise SpecError("form", ("name",), found(name, "the name of a user or a project"))
        studies.set_limit("user" if kind == "user" else "project", name, body.usd)
    except UserError as error:
        return _spend_page(request, studies, one_line(error), status_of(error))
    return to("/spend")


@router.get("/tokens")
def tokens_page(request: Request, context: AdminContext) -> Response:
    """Show all tokens without their secrets."""
    return _tokens_page(request, context)


def _tokens_page(request: Request, context: Any, problem: str = "", status: int = 200, made: Any = None) -> Response:
    lines = access_tokens.listed(context.store)
    return page(
        request, "tokens.html", status=status, lines=lines, problem=problem, made=made, roles=access_tokens.ROLES
    )


@router.post("/tokens")
def new_token(request: Request, context: AdminContext, form: Form) -> Response:
    """Create a token, shown only in this answer."""
    try:
        body = filled_in(TokenBody, {**form, "days": form.get("days") or None})
    except UserError as error:
        return _tokens_page(request, context, one_line(error), status_of(error))
    return _tokens_page(request, context, made=make_token(context, body))


@router.post("/tokens/{token_id}/revoke")
def revoke(context: AdminContext, token_id: int) -> Response:
    """Revoke a token."""
    revoke_token(context, token_id)
    return to("/tokens")


@router.post("/tokens/{token_id}/rotate")
def rotate(request: Request, context: AdminContext, token_id: int) -> Response:
    """Create a token that replaces another token, shown only in this answer."""
    return _tokens_page(request, context, made=rotate_token(context, token_id, RotationBody()))
