"""Uploads: bounded for each project together, whole or not at all, and of a project alone."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from automl.service.http_errors import TooLargeError
from automl.service.uploads import MOST_FILES, STALE_SECONDS, Uploads
from tests.support.service import TestedService, bearer, with_policy

MOST = 3_000_000
URL = "/api/v1/uploads"
OTHERS_PART = ".other.part"
REAL_SCANDIR = os.scandir


async def one_byte() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.fixture
def uploading(service: TestedService) -> TestedService:
    return with_policy(service, uploads=service.folder / "uploads", upload_bytes=MOST)


@pytest.fixture
def client(uploading: TestedService) -> Iterator[TestClient]:
    with TestClient(uploading.app()) as one:
        yield one


def test_a_file_is_kept_replaced_listed_and_deleted(uploading: TestedService, client: TestClient) -> None:
    headers = bearer(uploading.token())
    made = client.post(f"{URL}?name=train.csv", content=b"a,b\n1,2\n", headers=headers)
    assert (made.status_code, made.json()["bytes"]) == (201, 8)
    assert (uploading.folder / "uploads/vision/train.csv").read_bytes() == b"a,b\n1,2\n"
    client.post(f"{URL}?name=train.csv", content=b"a\n", headers=headers)
    assert [(one["name"], one["bytes"]) for one in client.get(URL, headers=headers).json()] == [("train.csv", 2)]
    assert client.delete(f"{URL}/train.csv", headers=headers).status_code == 200
    assert client.delete(f"{URL}/train.csv", headers=headers).status_code == 404
    assert client.get(URL, headers=headers).json() == []


def test_more_than_a_body_of_a_form_is_taken(uploading: TestedService, client: TestClient) -> None:
    chunks = (b"x" * 65_536 for _ in range(40))
    answer = client.post(f"{URL}?name=large.csv", content=chunks, headers=bearer(uploading.token()))
    assert (answer.status_code, answer.json()["bytes"]) == (201, 40 * 65_536)


@pytest.mark.parametrize("announced", [True, False])
def test_what_is_too_large_leaves_nothing(uploading: TestedService, client: TestClient, *, announced: bool) -> None:
    headers = bearer(uploading.token())
    client.post(f"{URL}?name=one.csv", content=b"x" * 1000, headers=headers)
    rest = MOST - 1000
    body = b"x" * (rest + 1)
    content = body if announced else (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    refused = client.post(f"{URL}?name=two.csv", content=content, headers=headers)
    assert refused.status_code == 413
    assert "\n" not in refused.json()["detail"]
    assert [path.name for path in (uploading.folder / "uploads/vision").iterdir()] == ["one.csv"]
    assert client.post(f"{URL}?name=two.csv", content=b"x" * rest, headers=headers).status_code == 201


@contextmanager
def files_that_vanish(folder: str | Path) -> Iterator[list[os.DirEntry[str]]]:
    """The entries of a folder, in which another request renames its part of a file before anything is known of it."""
    with REAL_SCANDIR(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.name == OTHERS_PART:
            Path(entry.path).replace(Path(folder, "a.csv"))
    yield found


def test_a_file_that_another_request_renames_meanwhile_harms_nobody(uploading, client, monkeypatch):
    headers, folder = bearer(uploading.token()), uploading.folder / "uploads/vision"
    folder.mkdir(parents=True)
    monkeypatch.setattr("automl.service.uploads.os.scandir", files_that_vanish)
    (folder / OTHERS_PART).write_bytes(b"x")
    assert client.get(URL, headers=headers).status_code == 200
    (folder / OTHERS_PART).write_bytes(b"x")
    made = client.post(f"{URL}?name=b.csv", content=b"y", headers=headers)
    assert made.status_code == 201
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "b.csv"]


def test_uploads_that_come_together_stay_within_the_bound_together(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 100_000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            await asyncio.sleep(0)
            yield b"x" * 1000

    async def all_at_once() -> list[object]:
        return list(
            await asyncio.gather(*(uploads.keep(f"{n}.csv", chunks()) for n in range(12)), return_exceptions=True)
        )

    ends = asyncio.run(all_at_once())
    assert any(isinstance(one, TooLargeError) for one in ends)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100_000
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_a_connection_that_breaks_leaves_the_old_file(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 1000)
    (tmp_path / "a.csv").write_text("old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        asyncio.run(uploads.keep("a.csv", broken()))
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "old"


def test_parts_of_a_killed_service_go_and_others_stay(tmp_path: Path) -> None:
    old, new = tmp_path / ".old.part", tmp_path / ".new.part"
    for path in (old, new):
        path.write_bytes(b"x" * 10)
    long_ago = time.time() - 2 * STALE_SECONDS
    os.utime(old, (long_ago, long_ago))

    asyncio.run(Uploads(tmp_path, 1000).keep("a.csv", one_byte()))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.part", "a.csv"]


@pytest.mark.parametrize(
    "name",
    ["../a.csv", "/etc/a.csv", ".a.csv", "a/b.csv", "sklearn.py", "a.csv\n", "a", "", "a.pth", "a.so", "x" * 200],
)
def test_a_name_leads_nowhere_and_is_no_program(uploading: TestedService, client: TestClient, name: str) -> None:
    answer = client.post(URL, params={"name": name}, content=b"x", headers=bearer(uploading.token()))
    assert answer.status_code == 422, answer.text
    assert not [path for path in uploading.folder.rglob("*") if path.is_file() and path.read_bytes() == b"x"]


def test_a_link_in_the_folder_is_neither_listed_nor_followed(uploading: TestedService, client: TestClient) -> None:
    folder = uploading.folder / "uploads/vision"
    folder.mkdir(parents=True)
    (uploading.folder / "secret.csv").write_text("secret")
    (folder / "link.csv").symlink_to(uploading.folder / "secret.csv")
    headers = bearer(uploading.token())
    assert client.get(URL, headers=headers).json() == []
    assert client.post(f"{URL}?name=link.csv", content=b"mine", headers=headers).status_code == 201
    assert (uploading.folder / "secret.csv").read_text() == "secret"


def test_a_project_has_so_many_files_at_most(tmp_path: Path) -> None:
    for number in range(MOST_FILES):
        (tmp_path / f"{number}.csv").touch()

    with pytest.raises(TooLargeError, match="Delete some"):
        asyncio.run(Uploads(tmp_path, 1000).keep("more.csv", one_byte()))
    asyncio.run(Uploads(tmp_path, 1000).keep("1.csv", one_byte()))


def test_projects_see_nothing_of_each_other_and_viewers_change_nothing(uploading, client):
    client.post(f"{URL}?name=mine.csv", content=b"x", headers=bearer(uploading.token()))
    other, viewer = bearer(uploading.token("bob", "speech")), bearer(uploading.token("eve", "vision", "viewer"))
    assert client.get(URL, headers=other).json() == []
    assert client.delete(f"{URL}/mine.csv", headers=other).status_code == 404
    assert [one["name"] for one in client.get(URL, headers=viewer).json()] == ["mine.csv"]
    assert client.delete(f"{URL}/mine.csv", headers=viewer).status_code == 403
    assert client.post(f"{URL}?name=more.csv", content=b"x", headers=viewer).status_code == 403


def test_an_operator_may_take_none(service: TestedService) -> None:
    with TestClient(service.app(), headers=bearer(service.token())) as client:
        answer = client.post(f"{URL}?name=a.csv", content=b"x")
    assert answer.status_code == 422
    assert "accepts no uploads" in answer.json()["detail"]
