"""What the routes of a service share: the store, what the operator allows, and who asks."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from automl.service.policy import Policy
from automl.service.team_studies import TeamStudies
from studies.queueing.tokens import Identity
from studies.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceContext:
    """A running service.

    Attributes:
        store: Store with studies, jobs and tokens.
        policy: What the operator allows.
    """

    store: Store
    policy: Policy


def context_of(request: Request) -> ServiceContext:
    """Return the service that a request is for."""
    found: ServiceContext = request.app.state.context
    return found


def identity_of(request: Request) -> Identity:
    """Return who asks; the gate has looked."""
    found: Identity = request.scope["state"]["identity"]
    return found


def team_studies(request: Request) -> TeamStudies:
    """Return the studies as the caller may see and change them."""
    context = context_of(request)
    return TeamStudies(context.store, context.policy, identity_of(request))


# Dependencies of routes are coroutines: FastAPI calls others in a thread, to which a busy machine is slow to change.
async def service_of(request: Request) -> ServiceContext:
    """Return the service that a request is for, as a dependency of a route."""
    return context_of(request)


async def studies_of(request: Request) -> TeamStudies:
    """Return the studies as the caller may see and change them, as a dependency of a route."""
    return team_studies(request)
