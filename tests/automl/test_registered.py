"""MLflow's registry as commands see it: where it is looked for, and that nothing of it is left out."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.formats import save_program
from automl.predicting.predict_rows import opened_model
from automl.registry.promotion import newer_champion
from automl.registry.registered import CHAMPION, Registry, local_model, registry_of
from studies.storage.views.mlflow_connect import open_client
from tests.support.databases import mlflow_database
from trainers.model.traced_program import example_call, traced


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in (".", "specs"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "mlflow.db").write_bytes(mlflow_database())
    return tmp_path


def register(folder: Path, *names: str) -> None:
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    for name in names:
        client.create_registered_model(name)
    client.create_model_version(names[-1], str(folder))


@pytest.mark.medium
def test_a_study_without_mlflow_has_its_models_where_models_looks(folder: Path) -> None:
    register(folder, "here")
    register(folder / "specs", "there")
    of_study = registry_of(None, None, str(folder / "specs"))
    assert [one.name for one in of_study.versions()] == [one.name for one in Registry(None).versions()] == ["here"]
    assert of_study.option == ""


def test_a_study_with_mlflow_says_where_its_models_are(folder: Path) -> None:
    register(folder / "specs", "there")
    of_study = registry_of(None, "sqlite:///mlflow.db", str(folder / "specs"))
    assert [one.name for one in of_study.versions()] == ["there"]
    assert of_study.option == f" --mlflow sqlite:///{folder}/specs/mlflow.db"
    assert registry_of("sqlite:///mlflow.db", "sqlite:///other.db", str(folder / "specs")).option == ""


@pytest.mark.parametrize("name", ["it's", 'say "x"', "both ' and \"", "' or name='here", "a\\", "a\\'b"])
def test_a_name_with_quotes_finds_its_own_versions_only(folder: Path, name: str) -> None:
    register(folder, "here")
    register(folder, name)
    assert [one.name for one in Registry(f"sqlite:///{folder}/mlflow.db").versions(name)] == [name]


def test_a_champion_that_came_meanwhile_is_seen(folder: Path) -> None:
    registry = Registry(f"sqlite:///{folder}/mlflow.db")
    register(folder, "moons")
    open_client(f"sqlite:///{folder}/mlflow.db").create_model_version("moons", str(folder))
    first, second = registry.versions("moons")
    assert newer_champion(registry, "moons", None) is None
    registry.name_version(first, CHAMPION)
    assert newer_champion(registry, "moons", registry.champion("moons")) is None
    assert newer_champion(registry, "moons", None) == registry.champion("moons")
    before = registry.champion("moons")
    registry.name_version(second, CHAMPION)
    found = newer_champion(registry, "moons", before)
    assert found.number == second.number


@pytest.mark.medium
def test_models_beyond_the_first_page_are_there(folder: Path) -> None:
    register(folder, *(f"model-{number:03d}" for number in range(102)))
    (version,) = Registry(None).versions()
    assert version.name == "model-101"


def test_who_asks_for_one_version_is_not_told_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server asks every two seconds, for its champion and for its challenger."""
    register(folder, "moons")
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    registry = Registry(None)
    registry.name_version(registry.versions("moons")[0], CHAMPION)
    asked: Counter[str] = Counter()
    for name in ("search_model_versions", "get_model_version", "get_model_version_by_alias"):
        plain = getattr(type(client), name)

        def counted(*given: Any, name: str = name, plain: Any = plain, **more: Any) -> Any:
            asked[name] += 1
            return plain(*given, **more)

        monkeypatch.setattr(type(client), name, counted)
    for number in (2, 3):
        client.create_model_version("moons", str(folder))
        asked.clear()
        uris = (f"models:/moons@{CHAMPION}", "models:/moons/1")
        found = [registry.champion("moons"), *map(registry.find, uris)]
        assert [one and (one.label, one.aliases) for one in found] == 3 * [("moons/1", (CHAMPION,))]
        assert asked == {"get_model_version_by_alias": 2, "get_model_version": 1}, number


@pytest.mark.medium
@pytest.mark.parametrize(("uri", "allowed"), [
    ("models:/moons@nobody", "its versions are 1"),
    ("models:/moons/7", "its versions are 1"),
    ("models:/suns@champion", "its models: moons"),
])  # fmt: skip
def test_a_version_that_is_not_there_is_told_with_those_that_are(folder: Path, uri: str, allowed: str) -> None:
    register(folder, "moons")
    with pytest.raises(ExportError, match=f"the registry .* has no '{uri}'; {allowed}$"):
        Registry(None).find(uri)
    assert Registry(None).champion("moons") is None


@pytest.mark.medium
def test_a_version_gives_its_programs_by_its_tag_and_another_one_needs_trust(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has exported nothing on this machine."""
    made = folder / "made" / "artifacts" / "model"
    made.mkdir(parents=True)
    manifest = {
        "format": 1, "programs": ["m.pt2"], "rows": {"kind": "array", "dtype": "float32", "shape": [3]},
        "answers": {"kind": "array"},
    }  # fmt: skip
    (made / "manifest.json").write_text(json.dumps(manifest))
    program = traced(example_call(torch.nn.Linear(3, 2), (torch.rand(4, 3),)))
    save_program(program, manifest, made / "m.pt2")
    registry = Registry(None)
    values: dict[str, Any] = {"tags": {}, "metrics": {}, "params": {}, "spec": {}}
    registry.register("moons", folder / "made", experiment="moons", at=1e9, **values)
    copied = folder / "copied" / "artifacts" / "model"
    shutil.copytree(made, copied)
    save_program(program, {**manifest, "note": "of someone else"}, copied / "m.pt2")
    open_client(f"sqlite:///{folder}/mlflow.db").create_model_version("moons", str(folder / "copied"))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "of_the_reader"))
    with local_model("models:/moons/2") as (place, _), pytest.raises(ExportError, match=r"--trust"):
        opened_model(place)
    with local_model("models:/moons/1") as (place, _):
        assert len(opened_model(place).predict([[1.0] * 3])) == 1
