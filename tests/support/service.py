"""A service over a store of its own: for tests of its routes, its gate and its workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from automl.service.http.context import ServiceContext
from automl.service.http.gate import Asgi
from automl.service.http.service_app import make_app
from automl.service.operator_policy import Policy
from automl.service.team_studies import TeamStudies
from studies.queueing import access_tokens
from studies.queueing.access_tokens import Identity, Role
from studies.queueing.job_queue import JobQueue, Submission
from studies.storage.study_store import Store
from tests.support.databases import empty_database

SPEC: dict[str, Any] = {
    "study": "small", "task": "digits", "objectives": [{"metric": "val_error"}], "training": {"epochs": 2},
    "search": {"sampler": "random", "pruner": "none"}, "budget": {"usd": 1.0, "hours": None, "trials": 2},
    "resources": {"slots": 1},
}  # fmt: skip


class TestedService:
    """A store with users of two projects."""

    __test__ = False

    def __init__(self, folder: Path, **policy: Any) -> None:
        (folder / "automl.db").write_bytes(empty_database())
        self.folder = folder
        self.store = Store(f"sqlite:///{folder}/automl.db")
        self.policy = Policy(**({"code_folders": {}, "artifacts": str(folder / "artifacts")} | policy))
        self.context = ServiceContext(store=self.store, policy=self.policy)
        self.queue = JobQueue(self.store)

    def token(self, user: str = "ann", project: str = "vision", role: Role = "member") -> str:
        """Make a token."""
        return access_tokens.create(self.store, name="test", user=user, project=project, role=role, days=None)[0]

    def studies(self, user: str = "ann", project: str = "vision", role: Role = "member") -> TeamStudies:
        """Return what such a user may see and change."""
        return TeamStudies(self.store, self.policy, Identity(user=user, project=project, role=role, token_id=1))

    def session(self, **who: Any) -> str:
        """Make a token, and begin a session of it in a browser."""
        found = access_tokens.begin_session(self.store, self.token(**who), 60.0)
        assert found is not None
        return found

    def app(self, *, needs_token: bool = True) -> Asgi:
        """Return the application, which needs tokens once there is one."""
        if needs_token and not access_tokens.any_made(self.store):
            self.token("nobody", "nothing", "viewer")
        return make_app(self.context, is_open=not needs_token, host="127.0.0.1")

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def spec_of(name: str, **sections: Any) -> dict[str, Any]:
    """Return a small spec of this name, with other sections if they are given."""
    return {**SPEC, "study": name, **sections}


def bearer(token: str) -> dict[str, str]:
    """Return the header that brings a token."""
    return {"Authorization": f"Bearer {token}"}


def with_policy(service: TestedService, **changes: Any) -> TestedService:
    """Let the operator of a service allow something else."""
    service.policy = replace(service.policy, **changes)
    service.context = ServiceContext(store=service.store, policy=service.policy)
    return service


def plain_submission(study: str, **more: Any) -> Submission:
    """A job of Ann without a spec, and with no bound of its own."""
    given = {"project": "vision", "user": "ann", "spec": {}, "base_folder": "/", "slots": 1, "limit_nano_usd": None}
    return Submission(study=study, **given | more)
