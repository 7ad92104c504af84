"""What is installed from a wheel, without the checkout and in an environment of its own, works from any folder."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import automl
from tests.support.alone import site_with
from tests.support.paths import ROOT

PACKAGES = ("automl", "reports", "search_spaces", "studies", "trainers")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_EXTRAS = {
    "accelerate": "automl.libraries.accelerate",
    "hugging-face": "automl.libraries.hugging_face",
    "keras": "automl.libraries.keras",
    "lightning": "automl.libraries.lightning",
    "mcp": "automl.mcp_server.server",
    "scikit-learn": "automl.libraries.scikit_learn",
    "serve": "automl.service.http.service_app, automl.standalone.serving.serve",
    "text": "trainers.tasks.text",
    "tune": "automl.adapters.for_ray_tune",
    "vision": "trainers.tasks.vision",
    "xgboost": "automl.libraries.xgboost",
}
"""What needs an extra, by the extra; the others are asked for by name where they are used."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what a wheel installs; the checkout is copied, since building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder / "out"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", str(folder), *options], check=True, cwd=folder)
    (wheel,) = (folder / "out").glob("automl_search-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


def environment(folder: Path, installed: Path, requirements: Sequence[str]) -> str:
    """The Python of a new environment that has what was installed, and what was required, and nothing else."""
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    others = site_with(folder, *(Requirement(one).name for one in requirements))
    (site / "all.pth").write_text(f"{installed}\n{others}\n")
    return str(folder / "env" / "bin" / "python")


def run(python: str, folder: Path, *arguments: str) -> str:
    left_out = ("PYTHONPATH", "AUTOML_STORE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out} | {"KERAS_BACKEND": "torch"}
    done = subprocess.run([python, *arguments], cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.medium
def test_a_wheel_has_every_file_and_the_version(installed: Path) -> None:
    files = {
        path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    there = {  # other tests have run what was installed
        path.relative_to(installed) for path in installed.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    assert {path for path in there if ".dist-info" not in path.parts[0]} == files
    (metadata,) = installed.glob("*.dist-info/METADATA")
    assert f"Version: {automl.__version__}\n" in metadata.read_text(encoding="utf-8")


@pytest.mark.large
def test_a_wheel_alone_trains_a_model_for_a_table_and_searches_a_function(installed, tmp_path, monkeypatch):
    python = environment(tmp_path, installed, PROJECT["dependencies"])
    rows = "".join(f"{number},{number % 7},{'ab'[number % 2]}\n" for number in range(200))
    (tmp_path / "table.csv").write_text(f"one,two,kind\n{rows}")
    table = ("--task", "tabular", "--data", "table.csv")
    planned = run(python, tmp_path, "-m", "automl", "launch", *table, "--dry-run", "--json")
    assert json.loads(planned)["spec"]["task"] == "tabular"
    with monkeypatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():  # as under torchrun
            patch.setenv(name, value)
        options = ("--option", "train=table.csv", "--option", "target=kind", "--epochs", "2", "--json")
        trained = json.loads(run(python, tmp_path, "-m", "automl", "train", "tabular", *options))
    assert len(trained["epochs"]) == 2
    example = (ROOT / "examples" / "search_digits.py").read_text(encoding="utf-8")
    (tmp_path / "search.py").write_text(example.replace('"1 min"', '"2 trials"').replace('"epochs": 10', '"epochs": 2'))
    assert run(python, tmp_path, "search.py").startswith("study by-hand: closed, 2 trials\nTake ")
    assert (tmp_path / "artifacts").is_dir()


def test_all_public_names_and_no_others_are_completed() -> None:
    assert dir(automl) == sorted(automl.__all__)
    assert all(getattr(automl, name) is not None for name in automl.__all__)


@pytest.mark.slow
@pytest.mark.medium
@pytest.mark.parametrize("extra", OF_EXTRAS)
def test_what_an_extra_is_for_can_be_imported_with_it(installed: Path, tmp_path: Path, extra: str) -> None:
    needs = [one.replace("xgboost>", "xgboost-cpu>") for one in PROJECT["optional-dependencies"][extra]]
    python = environment(tmp_path, installed, [*PROJECT["dependencies"], *needs])
    run(python, tmp_path, "-c", f"import {OF_EXTRAS[extra]}")
