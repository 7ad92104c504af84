"""Routes of workers, money, tokens, and the caller's identity."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from automl.service.http.context import ServiceContext, context_of, identity_of, service_of, studies_of
from automl.service.http.request_bodies import LimitBody, Name, RotationBody, TokenBody
from automl.service.http_errors import ConflictError, ForbiddenError, MissingError
from automl.service.team_studies import TeamStudies, plain_account
from studies.queueing import access_tokens
from studies.queueing.accounts import AccountKind
from studies.queueing.job_queue import JobQueue
from studies.storage.schema.engine import StoreError

router = APIRouter(prefix="/api/v1")
Studies = Annotated[TeamStudies, Depends(studies_of)]
Context = Annotated[ServiceContext, Depends(service_of)]


async def admin_context(request: Request) -> ServiceContext:
    """Return the service. Raises ForbiddenError unless the caller is an admin."""
    if not identity_of(request).is_admin:
        raise ForbiddenError("role: only an admin may do this. Ask an admin")
    return context_of(request)


AdminContext = Annotated[ServiceContext, Depends(admin_context)]


@router.get("/me", tags=["access"])
def me(request: Request) -> dict[str, Any]:
    """Return your user, project and role."""
    identity = identity_of(request)
    return {"user": identity.user, "project": identity.project, "role": identity.role}


@router.get("/workers", tags=["workers"])
def workers(context: Context) -> list[dict[str, Any]]:
    """List the running workers and their slots."""
    return [asdict(line) for line in JobQueue(context.store).workers()]


@router.get("/accounts", tags=["money"])
def accounts(studies: Studies) -> list[dict[str, Any]]:
    """List the spending limits that apply to you, with spent and promised dollars."""
    return [plain_account(one) for one in studies.accounts()]


@router.put("/accounts/{kind}/{name}", tags=["money"])
def set_limit(studies: Studies, kind: AccountKind, name: Name, body: LimitBody) -> list[dict[str, Any]]:
    """Limit the spending of a user or a project over all studies; admins only."""
    studies.set_limit(kind, name, body.usd)
    return accounts(studies)


@router.get("/tokens", tags=["access"])
def list_tokens(context: AdminContext) -> list[dict[str, Any]]:
    """List all tokens without their secrets; admins only."""
    return [asdict(line) for line in access_tokens.listed(context.store)]


@router.post("/tokens", tags=["access"], status_code=201)
def make_token(context: AdminContext, body: TokenBody) -> dict[str, Any]:
    """Create a token, shown only in this answer; admins only."""
    token, line = access_tokens.create(
        context.store, name=body.name, user=body.user, project=body.project, role=body.role, days=body.days
    )
    return asdict(line) | {"token": token}


@router.delete("/tokens/{token_id}", tags=["access"])
def revoke_token(context: AdminContext, token_id: int) -> dict[str, Any]:
    """Revoke a token, except the last admin's; admins only."""
    try:
        return asdict(access_tokens.revoke(context.store, token_id))
    except access_tokens.LastAdminError as error:
        raise ConflictError(str(error)) from None
    except StoreError as error:
        raise MissingError(str(error)) from None


@router.post("/tokens/{token_id}/rotate", tags=["access"], status_code=201)
def rotate_token(context: AdminContext, token_id: int, body: RotationBody) -> dict[str, Any]:
    """Create a token that replaces another token; admins only."""
    try:
        token, line = access_tokens.rotate(
            context.store, token_id, days=body.days, grace_seconds=body.grace_hours * 3600
        )
    except StoreError as error:
        raise MissingError(str(error)) from None
    return asdict(line) | {"token": token}
