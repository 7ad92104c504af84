"""Models that were trained and exported once, for all tests of the server."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.automl.exporting.test_standalone import Trained, trained
from tests.support import optional
from tests.support.task_files import HEADER, people, write


@pytest.fixture(scope="session")
def people_trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    for module in ("fastapi", "uvicorn", "prometheus_client", "pydantic_settings"):
        optional.module(module)
    folder = tmp_path_factory.mktemp("people")
    train = folder / "train.csv"
    write(train, [HEADER, *people(300)])
    return trained(folder, "tabular", {"train": str(train)}, {})


@pytest.fixture(scope="session")
def people_model(people_trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return people_trained.written(tmp_path_factory.mktemp("models") / "people")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("rows") / "new.csv"
    write(path, [HEADER, *people(96, seed=1)])
    return [{k: v for k, v in row.items() if k != "rich"} for row in csv.DictReader(path.read_text().splitlines())]
