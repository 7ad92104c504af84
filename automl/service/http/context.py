"""State shared by the routes: store, operator's policy, caller's identity."""

from dataclasses import dataclass

from fastapi import Request

from automl.service.http.gate import OWN_SITE, header
from automl.service.http_errors import ForbiddenError
from automl.service.operator_policy import Policy
from automl.service.team_studies import TeamStudies
from studies.queueing.access_tokens import Identity
from studies.storage.study_store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceContext:
    """A running service."""

    store: Store
    policy: Policy


def context_of(request: Request) -> ServiceContext:
    """Return the running service that answers a request."""
    found: ServiceContext = request.app.state.context
    return found


def refuse_other_sites(request: Request) -> None:
    """Raise ForbiddenError if another site's page sent the request. For routes that do more than read."""
    if header(request.scope, "sec-fetch-site") not in OWN_SITE:
        raise ForbiddenError("the request comes from a page of another site. Use the pages of this service")


def identity_of(request: Request) -> Identity:
    """Return the caller's identity, which `Gate` has checked."""
    found: Identity = request.scope["state"]["identity"]
    return found


def studies_for(request: Request) -> TeamStudies:
    """Return the team's studies, limited to the caller's rights."""
    context = context_of(request)
    return TeamStudies(context.store, context.policy, identity_of(request))


# Both are coroutines, because FastAPI runs other dependencies in a thread, which is slow on a busy machine.
async def service_of(request: Request) -> ServiceContext:
    """Return `context_of(request)`, as a dependency of routes."""
    return context_of(request)


async def studies_of(request: Request) -> TeamStudies:
    """Return `studies_for(request)`, as a dependency of routes."""
    return studies_for(request)
