"""`automl --server URL`: the same commands, texts and exit codes against a service as against a store."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from click.testing import CliRunner, Result

from automl.cli import BESIDE, COMMANDS, HERE, OVER_HTTP, cli
from automl.remote.client import RefusedError, ServiceClient, UnreachableError
from automl.terminal.options import token
from search_spaces.messages import UserError
from studies.queueing.job_queue import JobQueue, Submission
from studies.storage.schema import tables as t
from tests.support.stored_study import StoredStudy
from tests.support.team_service import SPEC, TeamService, team_service

pytestmark = pytest.mark.xdist_group("service")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamService]:
    with team_service(tmp_path_factory.mktemp("team")) as serving:
        yield serving


@pytest.fixture(scope="module")
def study(service: TeamService) -> str:
    """A study of the project `red` that has ended, in the store of the service."""
    stored = StoredStudy(service.folder)
    stored.trial(epochs=3, checkpoints=(2, 3), cost_nano_usd=1_000_000, state="complete", ended_at=time.time())
    stored.trial(epochs=2, cost_nano_usd=2_000_000, state="pruned", ended_at=time.time())
    queue = JobQueue(service.store)
    job = queue.find("small") or _job(queue, "small")
    queue.ask(job, "stop")
    return "small"


def _job(queue: JobQueue, name: str) -> Any:
    """A job of a study that is there: a submission refuses its name, so it gets it afterwards."""
    made = queue.submit(
        Submission(study="other", project="red", user="ann", spec=SPEC, base_folder="/", slots=1, limit_nano_usd=None)
    )
    with queue.store.engine.begin() as connection:
        connection.execute(sa.update(t.jobs).where(t.jobs.c.id == made.id).values(study=name))
    return queue.require(name)


@pytest.fixture
def run(service: TeamService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a command against the service as Ann, or as who is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOML_SERVER", raising=False)

    def run_command(*arguments: str, as_user: str = "ann") -> Result:
        monkeypatch.setenv("AUTOML_TOKEN", getattr(service, as_user))
        return CliRunner().invoke(cli, ["--server", service.url, *arguments])

    return run_command


def _local(service: TeamService, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--store", service.store.url])


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "small"), ("status", "small", "--json"), ("trials", "small"), ("trials", "small", "--json"),
        ("trials", "small", "--format", "csv", "--sort", "val_error:desc", "--top", "1"), ("explain", "small", "0"),
        ("explain", "small", "1", "--json"), ("list",), ("list", "--json"),
    ],
)  # fmt: skip
def test_reads_print_what_they_print_of_a_store(service, study, run, arguments):
    there, here = run(*arguments), _local(service, *arguments)
    assert there.exit_code == here.exit_code == 0, there.stdout
    assert there.stdout == here.stdout


def test_the_report_is_written_here(run: Any, study: str, tmp_path: Path) -> None:
    done = run("report", study, "--out", "page.html", "--json")
    assert json.loads(done.stdout) == {"report": str(tmp_path / "page.html")}
    assert "val_error" in (tmp_path / "page.html").read_text()
    assert run("report", study).exit_code == 0
    assert (tmp_path / "small.html").exists()


@pytest.mark.medium
def test_a_study_is_submitted_listed_stopped_resumed_and_deleted(service: TeamService, run: Any) -> None:
    Path("spec.yaml").write_text(yaml.safe_dump(SPEC))
    plan = json.loads(run("launch", "spec.yaml", "--dry-run", "--json").stdout)
    assert plan["spec"]["budget"]["usd"] == 2.0
    assert JobQueue(service.store).find("red.tiny") is None
    assert "; at most $" in run("launch", "spec.yaml", "--dry-run").stdout

    job = json.loads(run("submit", "spec.yaml", "--set", "budget.trials=7", "--priority", "-3", "--json").stdout)
    assert (job["study"], job["priority"], job["state"]) == ("red.tiny", -3, "queued")
    listed = json.loads(run("queue", "--json").stdout)
    assert [one["study"] for one in listed] == ["red.tiny"]
    assert run("queue").stdout.startswith("red.tiny")
    assert run("queue", as_user="bob").stdout == "no study is waiting or running\n"

    refused = run("launch", "spec.yaml", "--detach")
    assert isinstance(refused.exception, RefusedError)
    assert refused.exception.status == 409

    stopped = json.loads(run("stop", "tiny", "--json").stdout)
    assert stopped == {"study": "red.tiny", "state": "stopped", "driven": False, "message": "red.tiny is stopped"}
    assert run("resume", "tiny", "--detach").stdout == "red.tiny is queued\n"
    assert run("cancel", "tiny").exit_code == 0
    assert run("delete", "tiny", "--yes").exit_code == 0
    untold = run("delete", "tiny")
    assert untold.exit_code == 1 or isinstance(untold.exception, UserError)


def test_a_training_is_a_job_of_the_service(service: TeamService, run: Any) -> None:
    given = ["--param", "learning_rate=0.1", "--option", "samples=100", "--world-size", "2", "--epochs", "3"]
    job = json.loads(run("train", "digits", *given, "--usd", "0.2", "--name", "one", "--detach", "--json").stdout)
    assert (job["study"], job["kind"], job["slots"], job["limit_usd"]) == ("red.one", "training", 2, 0.2)
    spec, _ = JobQueue(service.store).spec_of(JobQueue(service.store).require("red.one"))
    assert {name: one["choices"] for name, one in spec["space"].items()} == {"learning_rate": [0.1], "world_size": [2]}
    assert (spec["task_options"], spec["training"]["epochs"]) == ({"samples": 100}, 3)
    assert run("cancel", "one").exit_code == 0
    named = run("train", "digits", "--detach").stdout
    assert named.startswith("red.train-2")
    assert run("cancel", named.partition(" ")[0]).exit_code == 0
    wrong = run("train", "digits", "--param", "learning_rate")
    assert "learning_rate" in str(wrong.exception)


def test_errors_are_one_line(service: TeamService, run: Any, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = run("trials", study, as_user="bob").exception
    assert isinstance(other, RefusedError)
    assert other.status == 404
    assert "small" in str(other)
    viewer = run("resume", study, as_user="viewer").exception
    assert isinstance(viewer, RefusedError)
    assert viewer.status == 403
    Path("bad.yaml").write_text("task: digits\nspace: 5\n")
    wrong = run("submit", "bad.yaml").exception
    assert isinstance(wrong, RefusedError)
    assert wrong.status == 422
    assert "space" in str(wrong)
    assert isinstance(run("submit", "missing.yaml").exception, UserError)
    monkeypatch.setenv("AUTOML_TOKEN", "automl_wrong")
    stranger = CliRunner().invoke(cli, ["--server", service.url, "list"]).exception
    assert isinstance(stranger, RefusedError)
    assert stranger.status == 401
    assert "AUTOML_TOKEN" in str(stranger)
    gone = CliRunner().invoke(cli, ["--server", "http://127.0.0.1:9", "list"]).exception
    assert isinstance(gone, UnreachableError)
    both = CliRunner().invoke(cli, ["--server", service.url, "trials", "x", "--store", "sqlite:///x.db"]).exception
    assert "--store and --server" in str(both)
    for exception in (other, viewer, wrong, stranger, gone, both):
        assert "\n" not in str(exception)


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://host", "http://", "http://user:secret@host"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="--server: found"):
        ServiceClient(url, None)


def test_every_command_asks_a_service_or_says_that_it_does_not(service: TeamService, run: Any) -> None:
    for command in set(COMMANDS) - OVER_HTTP:
        refused = run(command).exception
        assert isinstance(refused, UserError)
        own = "checks this machine" if command == "doctor" else "cannot use a service, but --server is set"
        assert str(refused).startswith(f"automl {command} {own}")
    assert set(COMMANDS) >= OVER_HTTP | HERE | BESIDE


@pytest.mark.parametrize(
    ("there", "arguments", "option"),
    [
        (True, ("logs", "small", "0", "--follow"), "--follow"),
        (True, ("delete", "small", "--keep-files"), "--keep-files"), (True, ("launch", "--task", "digits"), "--task"),
        (False, ("resume", "small", "--detach"), "--detach"), (False, ("confirm", "small", "--usd", "1"), "--usd"),
    ],
)  # fmt: skip
def test_an_option_of_the_other_form_is_refused(service, study, run, there, arguments, option):  # noqa: PLR0917
    refused = run(*arguments) if there else _local(service, *arguments)
    problem = "has no effect with --server: leave it out" if there else "needs --server"
    assert refused.exit_code == 2
    assert f"{option} {problem}" in refused.output


def test_the_environment_names_a_service(service: TeamService, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_SERVER", service.url)
    monkeypatch.setenv("AUTOML_TOKEN", service.ann)
    assert "small" in CliRunner().invoke(cli, ["list"]).stdout
    assert CliRunner().invoke(cli, ["init", "--help"]).exit_code == 0
    refused = CliRunner().invoke(cli, ["promote", "small", "0"]).exception
    assert str(refused).startswith("automl promote cannot use a service, but AUTOML_SERVER is set")


def test_the_tokens_file_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AUTOML_TOKEN", raising=False)
    assert token() is None
    path = tmp_path / ".config" / "automl" / "token"
    path.parent.mkdir(parents=True)
    path.write_text("automl_abc\n")
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        token()
    path.chmod(0o600)
    assert token() == "automl_abc"


def test_a_local_submission_waits_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOML_SERVER", raising=False)
    Path("spec.yaml").write_text(yaml.safe_dump(SPEC))
    store = f"sqlite:///{tmp_path}/own.db"
    done = CliRunner().invoke(cli, ["submit", "spec.yaml", "--priority", "5", "--store", store])
    assert done.stdout == "the study tiny is queued; `automl queue` shows its place\n"
    [job] = json.loads(CliRunner().invoke(cli, ["queue", "--store", store, "--json"]).stdout)
    assert (job["study"], job["priority"], job["project"], job["limit_usd"]) == ("tiny", 5, "local", 2.0)
    assert "priority    5" in CliRunner().invoke(cli, ["queue", "--store", store]).stdout
    long = CliRunner().invoke(cli, ["submit", "spec.yaml", "--set", f"study={'s' * 86}", "--store", store])
    assert "allowed: at most 85 characters in the queue" in str(long.exception)
