"""Pages of money and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from automl.service.admin_routes import AdminContext, make_token, revoke_token, rotate_token
from automl.service.bodies import LimitBody, RotationBody, TokenBody, filled_in
from automl.service.context import studies_of
from automl.service.rendering import PageRoute, form_of, one_line, page, status_of, to
from automl.service.study_view import spending
from automl.service.team_studies import TeamStudies, plain_account
from search_spaces.errors import UserError
from search_spaces.wording import found
from studies.queueing import tokens
from studies.spec.errors import SpecError

router = APIRouter(route_class=PageRoute, include_in_schema=False)
Studies = Annotated[TeamStudies, Depends(studies_of)]
Form = Annotated[Mapping[str, str], Depends(form_of)]
_KINDS = ("user", "project")


@router.get("/spend")
def spend_page(request: Request, studies: Studies) -> Response:
    """Show who has spent what, with limits."""
    return _spend_page(request, studies)


def _spend_page(request: Request, studies: TeamStudies, problem: str = "", status: int = 200) -> Response:
    plain = [plain_account(one) for one in studies.accounts()]
    lines = spending(studies.jobs_that_cost(), {(one["kind"], one["name"]): one for one in plain})
    return page(request, "spend.html", status=status, lines=lines, problem=problem)


@router.post("/spend")
def set_limit(request: Request, studies: Studies, form: Form) -> Response:
    """Limit the spending of a user or a project; an empty limit takes it away."""
    try:
        kind, name = form.get("kind", ""), form.get("name", "")
        if kind not in _KINDS:
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
    lines = tokens.listed(context.store)
    return page(request, "tokens.html", status=status, lines=lines, problem=problem, made=made, roles=tokens.ROLES)


@router.post("/tokens")
def new_token(request: Request, context: AdminContext, form: Form) -> Response:
    """Make a token, and show it this once."""
    try:
        body = filled_in(TokenBody, {**form, "days": form.get("days") or None})
    except UserError as error:
        return _tokens_page(request, context, one_line(error), status_of(error))
    return _tokens_page(request, context, made=make_token(context, body))


@router.post("/tokens/{token_id}/revoke")
def revoke(context: AdminContext, token_id: int) -> Response:
    """Let a token be refused from now on."""
    revoke_token(context, token_id)
    return to("/tokens")


@router.post("/tokens/{token_id}/rotate")
def rotate(request: Request, context: AdminContext, token_id: int) -> Response:
    """Make a token that takes the place of another one, and show it this once."""
    return _tokens_page(request, context, made=rotate_token(context, token_id, RotationBody()))
