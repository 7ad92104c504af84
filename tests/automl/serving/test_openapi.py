"""Schemathesis asks what the OpenAPI document allows, and what it forbids, and finds nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.automl.serving.conftest import TOKEN
from tests.support import optional
from tests.support.served import Server

RUN = (
    "run", "--checks", "all", "--mode", "all", "--phases", "examples,coverage,fuzzing", "--seed", "1",
    "--suppress-health-check", "all", "--no-shrink", "--warnings", "off", "--request-timeout", "60",
)  # fmt: skip


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "examples"),
    [
        ("guarded_server", 5),
        *[pytest.param(name, 100, marks=pytest.mark.slow) for name in ("server", "guarded_server")],
    ],
)
def test_schemathesis_finds_nothing(name: str, examples: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:  # importing it would change hypothesis for all other tests
        optional.missing("schemathesis", "pip install -c constraints.txt schemathesis")
    server: Server = request.getfixturevalue(name)
    token = ["--header", f"Authorization: Bearer {TOKEN}"] if name == "guarded_server" else []
    command = [sys.executable, "-m", "schemathesis.cli", *RUN, "--max-examples", str(examples), *token]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}/openapi.json"], cwd=tmp_path, check=False, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 4" in done.stdout, done.stdout
    assert "Traceback" not in server.log.read_text()
