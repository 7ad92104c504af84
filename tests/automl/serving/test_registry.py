"""A registered champion: the alias decides which version answers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from automl.exporting.atomic_outputs import ExportError
from automl.registry.registered import Registry
from automl.registry.serving import RegistryFolder
from tests.automl.exporting.test_standalone import Trained
from tests.automl.serving.models import Expected, write_model
from tests.support.databases import mlflow_database
from tests.support.served import COMMAND, Load, served


@pytest.fixture(scope="module")
def uri(people_trained: Trained, later_trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry with people/1, people/2, which is the later model, and people/3; tests add aliases of their own."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "mlflow.db").write_bytes(mlflow_database())
    uri = f"sqlite:///{folder}/mlflow.db"
    registry = Registry(uri)
    first = write_model(people_trained, folder / "first", 0, "mlflow")
    later = write_model(later_trained, folder / "later", 1, "mlflow")
    for written in (first, later, first):
        registry.register(
            "people", written, experiment="t", tags={}, metrics={}, params={}, spec={"task": "digits"}, at=1e9
        )
    return uri


@pytest.mark.medium
def test_a_moved_champion_loses_no_answer(uri, people_model, later_model, rows, tmp_path):
    expected = Expected({"people/1": people_model, "people/2": later_model}, rows)
    one = itertools.cycle(rows)
    registry = Registry(uri)
    registry.name_version(registry.find("models:/people/1"), "champion")
    with served(tmp_path, "models:/people@champion", "--mlflow", uri, run=COMMAND) as server:
        with Load(server, 4, lambda: {"row": next(one)}, pause_seconds=0.01) as clients:
            clients.more(30)
            registry.name_version(registry.find("models:/people/2"), "champion")
            server.wait_for(lambda: server.ask("/health").body["model"] == "people/2")
            clients.more(60)
        assert not clients.broken
        expected.check(clients.replies)
        assert {reply.body["model"] for reply in clients.replies[-30:]} == {"people/2"}
        registry._client.delete_registered_model_alias("people", "champion")
        server.wait_for(lambda: "champion" in (server.ask("/health").body["problem"] or ""))
        assert server.ask("/predict", {"row": rows[0]}).body["model"] == "people/2"


def test_files_of_the_two_newest_versions_stay(uri: str, tmp_path: Path) -> None:
    registry = Registry(uri)
    folder = RegistryFolder("models:/people@next", uri, tmp_path)
    places = []
    for number in (1, 2, 3):
        registry.name_version(registry.find(f"models:/people/{number}"), "next")
        places.append(folder.look())
        assert folder.look() == places[-1]
    assert [place["version"] for place in places] == ["people/1", "people/2", "people/3"]
    assert [Path(place["path"], "manifest.json").is_file() for place in places] == [False, True, True]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("name", "where", "words"), [
    ("models:/people", "", "allowed: models:/NAME@ALIAS or models:/NAME/VERSION"),
    ("models:/people@champion", "http://127.0.0.1:9", "does not answer"),
])  # fmt: skip
def test_what_names_no_version_or_is_asked_of_nobody_is_one_line(uri, name, where, words, tmp_path):
    with pytest.raises(ExportError, match=words) as refused:
        RegistryFolder(name, where or uri, tmp_path).look()
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_had_leave_nothing_behind(uri: str, tmp_path: Path) -> None:
    folder = RegistryFolder("models:/people/3", uri, tmp_path)
    files = Path(Registry(uri).find("models:/people/3").source.removeprefix("file://"))
    aside = files.rename(files.with_name("aside"))
    try:
        for _ in range(3):
            with pytest.raises(ExportError, match=r"^the files of people/3 cannot be read: "):
                folder.look()
    finally:
        aside.rename(files)
    assert list(tmp_path.iterdir()) == []
