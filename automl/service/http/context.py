"""What the routes of a service share: the store, what the operator allows, and who asks."""

from __future__ import annotations

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
    """Return the service that a request is for."""
    found: ServiceContext = request.app.state.context
    return found


def refuse_other_sites(request: Request) -> None:
    """Refuse what a page of another site has a browser ask for, for a route that does more than read.

    Raises:
        ForbiddenError: Another site asks.
    """
    if header(request.scope, "sec-fetch-site") not in OWN_SITE:
        raise ForbiddenError("header Sec-Fetch-Site: found another site, allowed: this service's own pages")


def identity_of(request: Request) -> Identity:
    """Return who asks; the gate has looked."""
    found: Identity = request.scope["state"]["identity"]
    return found


def studies_for(request: Request) -> TeamStudies:
    """Return the studies as the caller may see and change them."""
    context = context_of(request)
    return TeamStudies(context.store, context.policy, identity_of(request))


# These two are coroutines: FastAPI calls other dependencies in a thread, to which a busy machine is slow to change.
async def service_of(request: Request) -> ServiceContext:
    """Return the service that a request is for, as a dependency of a route."""
    return context_of(request)


async def studies_of(request: Request) -> TeamStudies:
    """Return the studies as the caller may see and change them, as a dependency of a route."""
    return studies_for(request)
