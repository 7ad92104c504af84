"""Tokens: valid until they expire or are revoked, and stored nowhere."""

import pytest
import sqlalchemy as sa

from studies.queueing import access_tokens
from studies.storage.schema import tables as t
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store


def made(store: Store, days: float | None = None) -> tuple[str, access_tokens.TokenLine]:
    return access_tokens.create(store, name="laptop", user="ann", project="vision", role="member", days=days)


@pytest.mark.usefixtures("either_url")
def test_a_token_stands_for_its_user_until_it_is_revoked_or_expires_and_is_not_stored(store: Store) -> None:
    token, line = made(store)
    identity = access_tokens.identify(store, token)
    assert (identity.user, identity.project, identity.role) == ("ann", "vision", "member")
    assert (identity.sees("vision"), identity.sees("text")) == (True, False)
    with store.snapshot() as connection:
        assert token not in map(str, connection.execute(sa.select(t.tokens)).one())
    for wrong in ("", "automl_", "\x00", "automl_" + "x" * 10_000, "\udcff"):
        assert access_tokens.identify(store, wrong) is None
    assert not access_tokens.revoke(store, line.id).is_valid
    assert access_tokens.identify(store, token) is None
    assert access_tokens.any_made(store)
    token, line = made(store, days=1.0)
    assert access_tokens.identify(store, token) is not None
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.tokens).where(t.tokens.c.id == line.id).values(expires_at=1.0))
    assert access_tokens.identify(store, token) is None


def test_a_rotated_token_lasts_for_its_grace(store: Store) -> None:
    old, line = made(store)
    new, other = access_tokens.rotate(store, line.id, days=30.0, grace_seconds=3600.0)
    assert access_tokens.identify(store, old) is not None
    assert access_tokens.identify(store, new) is not None
    assert (other.user, other.project, other.role) == ("ann", "vision", "member")
    newest, _ = access_tokens.rotate(store, other.id, days=None, grace_seconds=0.0)
    assert access_tokens.identify(store, new) is None
    assert access_tokens.identify(store, newest) is not None
    with pytest.raises(StoreError, match="no valid token has the id"):
        access_tokens.rotate(store, other.id, days=None, grace_seconds=0.0)


def test_a_secret_of_somebody_else_takes_the_place_of_the_one_before(store: Store) -> None:
    for token in ("first-secret-of-a-cluster", "second-secret-of-a-cluster", "second-secret-of-a-cluster"):
        access_tokens.keep(store, token, name="token file", user="admin", project="admin", role="admin")
    assert access_tokens.identify(store, "first-secret-of-a-cluster") is None
    assert [line.is_valid for line in access_tokens.listed(store)] == [False, True]


@pytest.mark.usefixtures("either_url")
def test_only_tokens_that_are_there_are_revoked(store: Store) -> None:
    for token_id in (7, 2**63, -(2**70)):
        with pytest.raises(StoreError, match=f"token: no token has the id {token_id}"):
            access_tokens.revoke(store, token_id)


WRONG_NAMES = [
    ("ann", "team/vision", "project: found 'team/vision', allowed: letters, digits, - and _, at most 60 of them"),
    ("ann", "..", "project: found '..'"),
    ("ann", "vision.a", "project: found 'vision.a'"),  # its studies would be those of the project `vision`
    ("ann", "a team", "project: found 'a team'"),
    ("ann", "vision\n", "project: found"),
    ("ann", "", "project: found ''"),
    ("ann", "x" * 61, "project: found"),
    ("../ann", "vision", "user: found '../ann', allowed: letters, digits, - _ @ and ., at most 100 of them"),
    (".ann", "vision", "user: found '.ann'"),
    ("", "vision", "user: found ''"),
]


def test_wrong_names_are_refused_but_tokens_of_older_versions_rotated_with_theirs(store: Store) -> None:
    for user, project, place in WRONG_NAMES:
        with pytest.raises(StoreError, match=place):
            access_tokens.create(store, name="laptop", user=user, project=project, role="member", days=None)
    assert access_tokens.listed(store) == []
    _, line = made(store)
    with store.engine.begin() as connection:
        connection.execute(sa.update(t.tokens).values(project="vision.a"))
    assert access_tokens.rotate(store, line.id, days=None, grace_seconds=0.0)[1].project == "vision.a"
