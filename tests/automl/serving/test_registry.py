"""A registered champion and its challenger: both answer, and the alias decides which version does."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automl.registry.registered import Registry
from automl.registry.serving import RegistrySource
from automl.standalone.serving.errors import ServeError
from tests.automl.exporting.test_standalone import Trained
from tests.automl.serving.models import Expected, write_model
from tests.support.databases import mlflow_database
from tests.support.served import COMMAND, Load, Server, served

SHARE = 0.3


@pytest.fixture(scope="module")
def uri(people_trained: Trained, later_trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry with the champion people/1 and the challenger people/2, which is the later model, and people/3."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "mlflow.db").write_bytes(mlflow_database())
    uri = f"sqlite:///{folder}/mlflow.db"
    registry = Registry(uri)
    first = write_model(people_trained, folder / "first", 0, "mlflow")
    later = write_model(later_trained, folder / "later", 1, "mlflow")
    for number, written in enumerate([first, later, first]):
        version = registry.register(
            "people", written, experiment="t", tags={}, metrics={}, params={}, spec={"task": "digits"}, at=1e9
        )
        if number < 2:
            registry.name_version(version, ("champion", "challenger")[number])
    return uri


@pytest.fixture(scope="module")
def server(uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--mlflow", uri, "--challenger", "challenger", "--share", str(SHARE))
    with served(tmp_path_factory.mktemp("aliases"), "models:/people@champion", *options, run=COMMAND) as one:
        yield one


@pytest.mark.large
def test_the_alias_decides_and_answers_name_their_version(
    server: Server, uri: str, people_model: Path, later_model: Path, rows: list[dict[str, Any]]
) -> None:
    models = {"people/1": people_model, "people/2": later_model}
    expected = Expected(models, rows)
    one = itertools.cycle(rows)
    health = server.ask("/health").body
    assert (health["model"], health["challenger"]) == ("people/1", "people/2")
    with Load(server, 4, lambda: {"row": next(one)}, pause_seconds=0.01) as clients:
        clients.more(600)
    expected.check(clients.replies)
    counts = Counter(reply.body["model"] for reply in clients.replies)
    assert counts.keys() == models.keys()
    assert counts["people/2"] / counts.total() == pytest.approx(SHARE, abs=0.09)  # five standard deviations

    registry = Registry(uri)
    third = registry.find("models:/people/3")
    with Load(server, 4, lambda: {"row": next(one)}, pause_seconds=0.01) as clients:
        clients.more(30)
        registry.name_version(third, "champion")
        server.wait_for(lambda: server.ask("/health").body["model"] == "people/3")
        clients.more(60)
    assert not clients.broken
    assert clients.statuses.keys() == {200}
    assert {reply.body["model"] for reply in clients.replies} == {"people/1", "people/2", "people/3"}
    assert {reply.body["model"] for reply in clients.replies[-30:]} <= {"people/2", "people/3"}


def test_a_person_meets_one_of_two_models(server: Server, rows: list[dict[str, Any]]) -> None:
    client = server.client()
    for person in map(str, range(20)):
        versions = {client.ask("/predict", {"row": row}, **{"AB-Key": person}).body["model"] for row in rows[:5]}
        assert len(versions) == 1
    client.close()


def test_files_of_a_version_stay_as_long_as_it_is_served(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    registry = Registry(uri)
    registry.name_version(registry.find("models:/people/1"), "next")
    source = RegistrySource("models:/people@next", uri)
    places = []
    for number, is_served in ((1, True), (2, False), (3, False), (2, True), (1, True)):
        registry.name_version(registry.find(f"models:/people/{number}"), "next")
        places.append(source.look())
        assert source.look() is places[-1]
        if is_served:
            source.served(places[-1])
        assert Path(places[0 if number == 3 else -1].path, "manifest.json").is_file()
    assert [place.version for place in places] == ["people/1", "people/2", "people/3", "people/2", "people/1"]
    assert not Path(places[0].path).exists()
    assert len(list(tmp_path.iterdir())) == 2
    source.close()
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_had_leave_nothing_behind(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = RegistrySource("models:/people/3", uri)
    files = Path(source._registry.find("models:/people/3").source.removeprefix("file://"))
    files.rename(files.with_name("aside"))
    for _ in range(3):
        with pytest.raises(ServeError, match=r"^the files of people/3 cannot be had: "):
            source.look()
    assert list(tmp_path.iterdir()) == []
    source.close()
