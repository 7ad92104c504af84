"""Servers that cannot start say why in one line."""

import pickle
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.automl.exporting.test_provenance import HOSTILE, Hostile, changed
from tests.automl.serving.models import cubes
from tests.support import optional
from tests.support.command_line import Workplace, message_of
from tests.support.served import start


def ended(folder: Path, model: Path, *options: str) -> str:
    """What a server says that cannot load its model, and ends with exit code 2."""
    assert start(folder, model, "--port", "0", *options).wait(100) == 2
    return (folder / "server.log").read_text()


def refused(folder: Path, *arguments: object) -> str:
    """What `automl serve-model` says, which ends with exit code 2 before it starts anything."""
    return message_of(Workplace(folder, None, has_mlflow=False).run("serve-model", *arguments, code=2).stderr)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none", None, " is not an exported model ([Errno 2] No such file"),
        (
            "empty.pt2",
            b"",
            " is not an exported model (File is not a zip file). Name a folder, .pt2 or .onnx file that",
        ),
        ("words.pt2", b"hello", " is not an exported model (File is not a zip file)"),
        ("weights.pt", pickle.dumps({"a": 1}), " is not an exported model (File is not a zip file)"),
        ("folder", {"other.json": b"{}"}, " is not an exported model ([Errno 2] No such file"),
        ("folder", {"manifest.json": b""}, " is not an exported model (Expecting value"),
        ("folder", {"manifest.json": b"[]"}, ": found the format None, allowed: 1"),
        ("folder", {"manifest.json": b'{"format": 99}'}, ": found the format 99, allowed: 1"),
    ],
)
def test_what_is_no_model(tmp_path: Path, name: str, content: Any, words: str) -> None:
    place = tmp_path / name
    if isinstance(content, dict):
        place.mkdir()
        for file, text in content.items():
            (place / file).write_bytes(text)
    elif content is not None:
        place.write_bytes(content)
    said = refused(tmp_path, place)
    assert f"MODEL: {place}{words}" in said


def test_an_archive_of_somebody_else(tmp_path: Path) -> None:
    place = tmp_path / "theirs.pt2"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("theirs/data.pkl", pickle.dumps(Hostile(tmp_path / "marker")))
    assert f"MODEL: {place} is not an exported model (there is no manifest.json in it)" in refused(tmp_path, place)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--port", "http"), "--port (AUTOML_SERVE_PORT): found 'http', allowed: a valid integer"),
        (("--port", "70000"), "--port (AUTOML_SERVE_PORT): found '70000', allowed: less than or equal to 65535"),
        (("--workers", "0"), "--workers (AUTOML_SERVE_WORKERS): found '0', allowed: greater than or equal to 1"),
        (("--timeout-seconds", "nan"), "--timeout-seconds (AUTOML_SERVE_TIMEOUT_SECONDS): found 'nan', allowed: "),
        (("--queue-rows", "10"), "--queue-rows is 10, less than --request-rows, which is 1000"),
        (("--host", "0.0.0.0"), "--host '0.0.0.0' needs a token. Use 127.0.0.1 or another loopback"),
        (("--settings", "none.env"), "--settings: 'none.env' is not a file. Name a file with lines AUTOML_SERVE"),
    ],
)
def test_settings_that_cannot_be(people_model: Path, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    assert words in refused(tmp_path, people_model, *options)


def test_settings_come_from_arguments_then_the_environment_then_a_file(people_model, tmp_path, monkeypatch):
    file = tmp_path / "serve.env"
    file.write_text("AUTOML_SERVE_PORT=from-the-file\nSOMETHING_ELSE=1\n")
    assert "found 'from-the-file'" in refused(tmp_path, people_model, "--settings", file)
    monkeypatch.setenv("AUTOML_SERVE_PORT", "from-the-environment")
    assert "found 'from-the-environment'" in refused(tmp_path, people_model, "--settings", file)
    assert "found 'given'" in refused(tmp_path, people_model, "--settings", file, "--port", "given")


def test_a_port_in_use(people_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(tmp_path, people_model, "--port", port)
    assert f"--port: {port} on 127.0.0.1 is unavailable: Address already in use. Pass --port 0" in said
    said = refused(tmp_path, people_model, "--host", "127.0.0.1.invalid", "--port", "0")
    assert "--host '127.0.0.1.invalid' needs a token" in said


@pytest.mark.medium
def test_a_registry_without_the_model(tmp_path: Path) -> None:
    said = message_of(Workplace(tmp_path, None).run("serve-model", "models:/people@champion", code=2).stderr)
    assert "MODEL: the registry sqlite:///mlflow.db has no 'models:/people@champion'" in said


@pytest.mark.medium
def test_a_model_that_could_run_code(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = changed(cubes(tmp_path / "m.pt2"), lambda content: HOSTILE["pickled examples"](content, marker))
    said = ended(tmp_path, hostile)
    assert f"MODEL: {hostile} was not exported by you on this machine, and loading it runs code" in said
    assert "AUTOML_SERVE_TRUST=1" in said
    assert not marker.exists()


@pytest.mark.parametrize("name", ["challenger", "share", "answers", "answers-mib"])
def test_what_was_removed(people_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    variable = f"AUTOML_SERVE_{name.replace('-', '_').upper()}"
    told = f"--{name} ({variable}): this option was removed; to compare models, split requests between two servers"
    assert told in refused(tmp_path, people_model, f"--{name}", "1")
    monkeypatch.setenv(variable, "1")
    assert told in refused(tmp_path, people_model)


@pytest.mark.slow
def test_a_device_that_is_not_there(people_model: Path, tmp_path: Path) -> None:
    said = ended(tmp_path, people_model, "--device", "abacus")
    assert f"MODEL: {people_model} does not load: RuntimeError: " in said


@pytest.mark.medium
def test_an_empty_onnx_file(tmp_path: Path) -> None:
    optional.module("onnxruntime")
    (tmp_path / "empty.onnx").touch()
    assert f"MODEL: {tmp_path}/empty.onnx does not load: " in ended(tmp_path, tmp_path / "empty.onnx")
