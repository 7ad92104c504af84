"""Models that were trained and exported once, and servers that several files of tests ask."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.automl.exporting.test_standalone import Trained, pictures, texts, trained
from tests.automl.serving.models import cubes, write_model
from tests.support import optional
from tests.support.served import Server, served
from tests.support.task_files import HEADER, people, write

TOKEN = "a-token-of-26-characters-0"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let one worker of pytest run all tests of servers, since each worker would train and serve models of its own."""
    if item.path.parent == Path(__file__).parent:
        item.add_marker(pytest.mark.xdist_group("serving"))


@pytest.fixture(scope="session")
def _packages() -> None:
    for module in ("fastapi", "gunicorn", "uvicorn_worker", "prometheus_client", "pydantic_settings"):
        optional.module(module)


@pytest.fixture(scope="session")
def people_trained(_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("people")
    train = write(folder / "train.csv", [HEADER, *people(300)])
    return trained(folder, "tabular", {"train": train}, {})


@pytest.fixture(scope="session")
def people_model(people_trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version t/0@2."""
    return people_trained.written(tmp_path_factory.mktemp("models") / "people")


@pytest.fixture(scope="session")
def later_trained(_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model of the same columns and of other weights."""
    folder = tmp_path_factory.mktemp("later")
    train = write(folder / "train.csv", [HEADER, *people(300, seed=5)])
    return trained(folder, "tabular", {"train": train}, {"learning_rate": 0.03})


@pytest.fixture(scope="session")
def later_model(later_trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version t/1@2."""
    return write_model(later_trained, tmp_path_factory.mktemp("models") / "later", 1)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("rows") / "new.csv"
    write(path, [HEADER, *people(96, seed=1)])
    return [{k: v for k, v in row.items() if k != "rich"} for row in csv.DictReader(path.read_text().splitlines())]


@pytest.fixture(scope="session")
def text_model(_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    optional.module("tokenizers")
    folder = tmp_path_factory.mktemp("texts")
    texts(folder / "train.tsv", 120, 0)
    options = {"train": str(folder / "train.tsv"), "vocabulary": 200, "longest": 24}
    return trained(folder, "text", options, {"width": 16, "heads": 2}).written(folder / "model")


@pytest.fixture(scope="session")
def image_model(_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    pictures(folder / "train", 40, 0)
    options = {"train": str(folder / "train"), "size": 16}
    return trained(folder, "vision", options, {"architecture": "cnn", "channels": 8}).written(folder / "model")


@pytest.fixture(scope="session")
def cubes_model(_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose clients decide how long it computes."""
    return cubes(tmp_path_factory.mktemp("cubes") / "cubes.pt2")


@pytest.fixture(scope="session")
def server(people_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of people_model without a token."""
    options = ("--body-mib", "0.5", "--request-rows", "100")
    with served(tmp_path_factory.mktemp("server"), people_model, *options) as one:
        yield one


@pytest.fixture(scope="session")
def guarded_server(cubes_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of cubes_model that wants a token, and has little patience and room."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(f"{TOKEN}\n")
    options = ("--token-file", str(folder / "token"), "--timeout-seconds", "2", "--batch-rows", "1")
    with served(folder, cubes_model, *options, "--queue-rows", "4", "--request-rows", "4") as one:
        yield one
