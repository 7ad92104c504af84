"""`automl --server URL export`: a model of the service's study, as a file or a folder here."""

import io
import json
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from automl.cli import cli
from automl.remote.client import RefusedError
from automl.service import model_files
from automl.service.http.gate import COOKIE
from automl.service.http.request_bodies import ModelQuestion
from automl.service.http_errors import BusyError
from automl.service.model_files import MOST_ARCHIVES, ModelArchive
from automl.standalone.model import load
from search_spaces.drawing import fresh_seed
from search_spaces.messages import RunError, UserError
from studies.queueing import access_tokens
from studies.queueing.job_queue import JobQueue, Submission
from studies.storage.schema import tables as t
from tests.support.http_servers import answered_by
from tests.support.stored_study import PARAMS, StoredStudy
from tests.support.team_service import SPEC, TeamService, team_service
from tests.support.trainer_pool import run_trial
from tests.support.waiting import wait_until
from trainers.checkpoints.model_export import load_exported
from trainers.protocol import TrialSpec
from trainers.ranks.printed_output import log_folder, log_path
from trainers.ranks.process_group import Group

pytestmark = pytest.mark.xdist_group("service")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamService]:
    """A service with `red.small`, whose trial 0 has a real model after epoch 1 and has lost that after epoch 2."""
    folder = tmp_path_factory.mktemp("team")
    params = {name: PARAMS[name] for name in ("learning_rate", "batch_per_rank", "architecture", "width")}
    trained = run_trial(Group(), TrialSpec(
        study="small", trial=0, task="digits", params=params, training={"epochs": 1}, milestones=(1,),
        checkpoint_folder=str(folder / "trial-0"),
    ))  # fmt: skip
    with team_service(folder) as serving:
        queue = JobQueue(serving.store)
        job = queue.submit(Submission(
            study="red.small", project="red", user="ann", spec=SPEC, base_folder=str(folder), slots=1,
            limit_nano_usd=None,
        ))  # fmt: skip
        queue.ask(job, "stop")
        StoredStudy(folder).trial(epochs=2, checkpoints=(1, 2), state="complete", ended_at=time.time())
        with serving.store.engine.begin() as connection:
            connection.execute(sa.update(t.studies).values(name="red.small"))
            kept = sa.update(t.epochs).where(t.epochs.c.epoch == 1)
            connection.execute(kept.values(checkpoint=trained["measurements"][-1].checkpoint))
        yield serving


@pytest.fixture
def run(service: TeamService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a command against the service as Ann, or as who is named, in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run_command(*arguments: str, as_user: str = "ann") -> Result:
        monkeypatch.setenv("AUTOML_TOKEN", getattr(service, as_user))
        return CliRunner().invoke(cli, ["--server", service.url, *arguments])

    return run_command


@pytest.mark.medium
def test_a_package_comes_as_a_folder_that_answers(run: Any) -> None:
    done = run("export", "small", "0@1", "--out", "model", "--licence", "MIT", "--json", as_user="viewer")
    told = json.loads(done.stdout)
    assert (told["study"], told["trial"], told["epoch"], told["format"]) == ("red.small", 0, 1, "package")
    assert told["out"] == str(Path("model").absolute())
    assert repr(told["out"]) in told["how_to_load"]
    assert len(load(Path("model")).predict([[0.0] * 64])) == 1
    assert "MIT" in Path("model", "README.md").read_text()
    assert sorted(path.name for path in Path().iterdir()) == ["model"]


@pytest.mark.medium
def test_weights_come_as_a_file_that_says_how_to_load_it(run: Any) -> None:
    done = run("export", "small", "0@1", "--out", "weights.pt")
    assert done.stdout.startswith(f"{Path('weights.pt').absolute()} holds trial 0 after epoch 1: val_error ")
    content = load_exported(Path("weights.pt"))
    assert content["params"]["width"] == PARAMS["width"]
    assert str(Path("weights.pt").absolute()) in content["how_to_load"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("small", "0@2", "--out", "m"), "/nowhere/0-2.pt is missing"), (("small", "7", "--out", "m"), "found 7"),
        (("small", "0@1", "--out", "m", "--ensemble"), "confirm"), (("none", "0@1", "--out", "m"), "found 'none'"),
    ],
)  # fmt: skip
def test_what_the_service_refuses_is_one_line_and_leaves_nothing(run, arguments, words):
    refused = run("export", *arguments).exception
    assert isinstance(refused, RefusedError)
    assert words in str(refused)
    assert "\n" not in str(refused)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("out", "words"), [("taken", "exists already"), ("none/model", "no folder")])
def test_a_place_that_is_taken_is_refused_before_a_service_is_asked(out, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    Path("taken", "file").write_text("mine")
    nobody = "http://127.0.0.1:9"
    refused = CliRunner().invoke(cli, ["--server", nobody, "export", "small", "0@1", "--out", out]).exception
    assert words in str(refused)
    assert [path.name for path in Path().rglob("*")] == ["taken", "file"]


@contextmanager
def answering(status: int, body: bytes, headers: dict[str, str]) -> Iterator[str]:
    """Address of a server that gives each request the same answer, and then ends the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with answered_by(Handler) as address:
        yield address


@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (200, b"no archive", {}, "the server's answer is not an exported model"),
        (200, b"cut", {"Content-Length": "1000"}, "closed the connection"),
        (404, b'{"detail": "Not Found"}', {}, "it is another version of automl"),
    ],
)
def test_what_no_service_of_this_version_answers_is_one_line_and_leaves_nothing(  # noqa: PLR0917
    status: int, body: bytes, headers: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with answering(status, body, headers) as address:
        refused = CliRunner().invoke(cli, ["--server", address, "export", "small", "0@1", "--out", "m"]).exception
    assert isinstance(refused, UserError | RunError)
    assert words in str(refused)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("place", "form", "name"),
    [
        (None, "package", "model"), (None, "onnx", "model.onnx"), ("/home/ann/churn.onnx", "onnx", "churn.onnx"),
        ("/home/ann/my model", "package", "model"), ("/home/ann/..", "package", "model"),
        ("export.json", "weights", "model.pt"), (".hidden", "weights", "model.pt"),
    ],
)  # fmt: skip
def test_the_model_has_the_name_that_its_user_gives_it_if_that_is_a_plain_one(place, form, name):
    assert model_files._file_name(ModelQuestion(format=form, place=place)) == name


@pytest.mark.medium
def test_a_browser_gets_an_archive_from_the_page(service: TeamService) -> None:
    def asked(path: str, **headers: str) -> Any:
        cookie = {"Cookie": f"{COOKIE}={access_tokens.begin_session(service.store, service.ann, 60.0)}"}
        return urlopen(Request(service.url + path, headers=cookie | headers), timeout=240.0)

    with asked("/studies/red.small") as page:
        assert 'href="/studies/red.small/models/0%402"' in page.read().decode()
    with pytest.raises(HTTPError) as lost:
        asked("/studies/red.small/models/0%402")
    with lost.value as answer:
        assert answer.status == 409
        assert answer.headers["Content-Type"].startswith("text/html")
        assert "/nowhere/0-2.pt is missing" in answer.read().decode()
    with pytest.raises(HTTPError) as foreign:
        asked("/studies/red.small/models/0%401", **{"Sec-Fetch-Site": "cross-site"})
    with foreign.value as answer:
        assert answer.status == 403
    with asked("/api/v1/studies/red.small/model?point=0%401&format=onnx") as answer:
        assert answer.headers["Content-Disposition"] == 'attachment; filename="red.small-0@1.zip"'
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))
    assert archive.namelist() == ["export.json", "model.onnx"]
    told = json.loads(archive.read("export.json"))
    assert (told["format"], told["out"]) == ("onnx", "model.onnx")
    assert "InferenceSession('model.onnx')" in told["how_to_load"]


@pytest.mark.medium
def test_downloads_that_nobody_reads_are_bounded_and_make_room_when_their_reader_has_gone(run: Any) -> None:
    held: list[ModelArchive] = []

    def are_all_held() -> bool:
        with suppress(BusyError):
            held.append(ModelArchive.begun())
        return len(held) == MOST_ARCHIVES

    wait_until(are_all_held)  # one that was read before is closed a moment after its reader has the last byte
    refused = run("export", "small", "0@1", "--out", "m").exception
    assert isinstance(refused, RefusedError)
    assert refused.status == 429
    held.clear()
    assert run("export", "small", "7", "--out", "m").exception.status == 422


def test_what_has_confirmed_a_trial_has_logs_by_any_seed(service: TeamService, run: Any) -> None:
    seed = fresh_seed("confirm", 0, 3, 1)
    assert seed > 10**9
    path = log_path(log_folder(service.folder, "red.small", 0, seed=seed), 1, 0)
    path.parent.mkdir(parents=True)
    path.write_text("of the confirmation\n")
    assert run("logs", "small", "0", "--seed", str(seed)).stdout == "of the confirmation\n"
    refused = run("logs", "small", "0", "--seed", "5").exception
    assert str(refused) == f"--seed: found 5, allowed: {seed}"
