"""Access tokens of the service, each for one user with a role. The store holds their hashes."""

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from search_spaces.messages import found
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError, clock_of
from studies.storage.study_store import Store

Role = Literal["viewer", "member", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "member", "admin")
PREFIX = "automl_"  # token prefix, so that secret scanners can detect leaked tokens
USER_PATTERN = r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,99}"  # allowed user names
PROJECT_PATTERN = r"[A-Za-z0-9_-]{1,60}"
"""Allowed project names. A project is a folder; its studies' names begin with its name and a dot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The user who sent a request, with role and project."""

    user: str
    project: str  # the only visible project, except for an admin
    role: Role  # viewer reads, member also submits and stops, admin does everything in all projects
    token_id: int | None = None  # id of the token's row; None on the loopback interface without tokens
    session_id: int | None = None  # id of the browser session's row; None if the request had the token itself

    @property
    def is_admin(self) -> bool:
        """Return whether the user is an admin."""
        return self.role == "admin"

    def sees(self, project: str) -> bool:
        """Return whether the user may read a project."""
        return self.is_admin or self.project == project


class LastAdminError(StoreError):
    """The only valid token of an admin cannot be revoked: nobody could create tokens then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLine:
    """A token without its secret; times are in seconds since 1970."""

    id: int
    name: str
    user: str
    project: str
    role: Role
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    is_valid: bool


def digest_of(token: str) -> str:
    """Return the SHA-256 hash of a token, whose 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create(
    store: Store, *, name: str, user: str, project: str, role: Role, days: float | None
) -> tuple[str, TokenLine]:
    """Create a token for `days` days (None: forever). Raises StoreError for an invalid name."""
    if re.fullmatch(USER_PATTERN, user) is None:
        allowed = "letters, digits, - _ @ and ., at most 100 of them, no . in front"
        raise StoreError(f"user: {found(user, allowed)}")
    if re.fullmatch(PROJECT_PATTERN, project) is None:
        raise StoreError(f"project: {found(project, 'letters, digits, - and _, at most 60 of them')}")
    return _made(store, name=name, user=user, project=project, role=role, days=days)


def _made(store: Store, *, name: str, user: str, project: str, role: Role, days: float | None) -> tuple[str, TokenLine]:
    token = PREFIX + secrets.token_urlsafe(32)
    with store.engine.begin() as connection:
        now = clock_of(connection)
        row = {
            "name": name, "user": user, "project": project, "role": role, "digest": digest_of(token),
            "created_at": now, "expires_at": None if days is None else now + days * 86_400.0,
        }  # fmt: skip
        token_id = connection.execute(sa.insert(t.tokens).values(row).returning(t.tokens.c.id)).scalar_one()
    return token, next(line for line in listed(store) if line.id == token_id)


def keep(store: Store, token: str, *, name: str, user: str, project: str, role: Role) -> None:
    """Store a token made elsewhere, such as a cluster's secret, and revoke older tokens of its name."""
    if identify(store, token) is not None:
        return
    with store.engine.begin() as connection:
        now = clock_of(connection)
        old = (t.tokens.c.name == name, t.tokens.c.user == user, t.tokens.c.revoked_at.is_(None))
        connection.execute(sa.update(t.tokens).where(*old).values(revoked_at=now))
        connection.execute(sa.delete(t.tokens).where(t.tokens.c.digest == digest_of(token)))
        row = {"name": name, "user": user, "project": project, "role": role, "digest": digest_of(token)}
        connection.execute(sa.insert(t.tokens).values(row | {"created_at": now}))


def identify(store: Store, token: str) -> Identity | None:
    """Return the token's user; None if the token is unknown, expired or revoked."""
    return _identity(store, t.tokens.c.digest == digest_of(token))


def identify_session(store: Store, secret: str) -> Identity | None:
    """Return the user of a browser session; None if the session or its token is invalid."""
    return _identity(store, t.sessions.c.digest == digest_of(secret), is_session=True)


def _identity(store: Store, which: sa.ColumnElement[bool], *, is_session: bool = False) -> Identity | None:
    with store.snapshot() as connection:
        query = _lines(connection).where(which)
        if is_session:
            query = query.add_columns(t.sessions.c.id.label("session_id")).join(t.sessions)
            query = query.where(t.sessions.c.expires_at > clock_of(connection))
        row = connection.execute(query).first()
    if row is None or not row.is_valid:
        return None
    session_id = row.session_id if is_session else None
    return Identity(user=row.user, project=row.project, role=row.role, token_id=row.id, session_id=session_id)


def begin_session(store: Store, token: str, seconds: float) -> str | None:
    """Start a browser session of a token and return its secret; None for an invalid token."""
    identity, secret = identify(store, token), secrets.token_urlsafe(32)
    if identity is None:
        return None
    with store.engine.begin() as connection:
        now = clock_of(connection)
        connection.execute(sa.delete(t.sessions).where(t.sessions.c.expires_at <= now))
        row = {"token_id": identity.token_id, "digest": digest_of(secret), "expires_at": now + seconds}
        connection.execute(sa.insert(t.sessions).values(row))
    return secret


def end_session(store: Store, secret: str) -> None:
    """End the browser session with this secret."""
    with store.engine.begin() as connection:
        connection.execute(sa.delete(t.sessions).where(t.sessions.c.digest == digest_of(secret)))


def lasts(store: Store, identity: Identity) -> bool:
    """Return whether a token or session is still valid; True if the service uses no tokens."""
    if identity.token_id is None:
        return True
    if identity.session_id is not None:
        return _identity(store, t.sessions.c.id == identity.session_id, is_session=True) is not None
    return _identity(store, t.tokens.c.id == identity.token_id) is not None


def listed(store: Store) -> list[TokenLine]:
    """Return all tokens, oldest first."""
    with store.snapshot() as connection:
        return [TokenLine(**row) for row in connection.execute(_lines(connection).order_by(t.tokens.c.id)).mappings()]


def any_made(store: Store) -> bool:
    """Return whether any token was ever created."""
    with store.snapshot() as connection:
        return connection.execute(sa.select(t.tokens.c.id).limit(1)).first() is not None


def revoke(store: Store, token_id: int, *, force: bool = False) -> TokenLine:
    """Revoke a token. Raises StoreError for an unknown id; without `force`, LastAdminError for the last admin."""
    if all(line.id != token_id for line in listed(store)):  # checked here, since the id may not fit the database's type
        raise StoreError(f"token: no token has the id {token_id}. `automl token list` lists the tokens")
    with store.engine.begin() as connection:
        locked = _lines(connection).where(t.tokens.c.role == "admin").order_by(t.tokens.c.id).with_for_update()
        admins = [row.id for row in connection.execute(locked) if row.is_valid]
        if admins == [token_id] and not force:
            raise LastAdminError(
                f"token: {token_id} is the only valid token of an admin. Create another admin token first, or run "
                f"`automl token revoke {token_id} --force` with direct access to the store"
            )
        still = sa.func.coalesce(t.tokens.c.revoked_at, clock_of(connection))
        connection.execute(sa.update(t.tokens).where(t.tokens.c.id == token_id).values(revoked_at=still))
    return next(line for line in listed(store) if line.id == token_id)


def rotate(store: Store, token_id: int, *, days: float | None, grace_seconds: float) -> tuple[str, TokenLine]:
    """Return a new token for `days` days (None: forever). The old token expires after `grace_seconds`.

    Raises StoreError if the old token is invalid.
    """
    old = next((line for line in listed(store) if line.id == token_id), None)
    if old is None or not old.is_valid:
        raise StoreError(f"token: no valid token has the id {token_id}. `automl token list` lists the tokens")
    made = _made(store, name=old.name, user=old.user, project=old.project, role=old.role, days=days)
    with store.engine.begin() as connection:
        until = clock_of(connection) + grace_seconds
        sooner = sa.or_(t.tokens.c.expires_at.is_(None), t.tokens.c.expires_at > until)
        connection.execute(sa.update(t.tokens).where(t.tokens.c.id == token_id, sooner).values(expires_at=until))
    return made


def _lines(connection: sa.Connection) -> sa.Select[Any]:
    c = t.tokens.c
    lasts = sa.or_(c.expires_at.is_(None), c.expires_at > clock_of(connection))
    valid = sa.and_(c.revoked_at.is_(None), lasts).label("is_valid")
    return sa.select(c.id, c.name, c.user, c.project, c.role, c.created_at, c.expires_at, c.revoked_at, valid)
