"""A client of the service gets neither code nor files of its operator, nor the time of others."""

import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from automl.service.http_errors import ForbiddenError
from automl.service.operator_policy import Policy
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import parse_spec
from tests.automl.service.test_pages import logged_in, problem
from tests.support import service as support
from tests.support.service import TestedService, with_policy

OPERATORS = """
import os, subprocess
from subprocess import Popen
from functools import partial
alias = os.system

class Own:
    pass

def learn(trial):
    pass
"""


@pytest.fixture
def client(service: TestedService) -> Any:
    folder = service.folder / "operators"
    folder.mkdir()
    (folder / "own.py").write_text(OPERATORS)
    with_policy(service, uploads=service.folder / "uploads", code_folders={"code": folder})
    (service.folder / "uploads" / "vision").mkdir(parents=True)
    with TestClient(service.app(), base_url="http://team.example", follow_redirects=False) as one:
        yield one


@pytest.mark.parametrize(
    "task", ["own:os.system", "own:subprocess.Popen", "own:Popen", "own:partial", "own:alias", "own:Own.__init__"]
)
@pytest.mark.parametrize("place", ["task", "sampler", "pruner"])
def test_a_client_runs_only_what_the_operators_modules_define(tmp_path: Path, task: str, place: str) -> None:
    (tmp_path / "own.py").write_text(OPERATORS)
    policy = Policy(code_folders={"code": tmp_path})
    allowed = {"task": "own:Own"} if place == "task" else {"task": "digits", "search": {place: "own:learn"}}
    for name, is_allowed in (("own:Own", True), (task, False)):
        given = {"task": name} if place == "task" else {**allowed, "search": {place: name}}
        spec = parse_spec({"study": "a", **given})
        if is_allowed:
            policy.admit(spec, source="spec", base_folder=tmp_path, project="vision")
            continue
        with pytest.raises(SpecError, match=r"a class or function that own\.py itself defines"):
            policy.admit(spec, source="spec", base_folder=tmp_path, project="vision")


def test_an_installed_package_that_the_operator_names_gives_what_its_modules_define(tmp_path: Path) -> None:
    policy = Policy(code_folders={}, packages=frozenset({"tests"}))

    def admit(task: str) -> None:
        policy.admit(parse_spec({"study": "a", "task": task}), source="spec", base_folder=tmp_path, project="vision")

    admit("tests.support.faulty_tasks:Faulty")
    for task in ("tests.support.faulty_tasks:os.system", "tests.support.none:Task", "tests.support:Path"):
        with pytest.raises(SpecError, match="task"):
            admit(task)


@pytest.mark.medium
def test_changes_of_a_table_open_no_other_file(service: TestedService, client: TestClient, monkeypatch: Any) -> None:
    uploads = service.folder / "uploads"
    (uploads / "vision" / "own.csv").write_text("a,b\n1,0\n2,1\n" * 20)
    (uploads / "speech").mkdir()
    (uploads / "speech" / "hidden.csv").write_text("secret,b\n1,0\n")
    monkeypatch.chdir(service.folder)
    logged_in(service, client)
    form = {"how": "table", "file": "own.csv", "target": "b", "do": "check"}
    for changes in (
        "task=digits\ntask_options.train=/etc/passwd",
        "task_options.train=uploads/speech/hidden.csv",
        "task_options.validation=../speech/hidden.csv",
        "task_options.train=~/.bashrc",
    ):
        answer = client.post("/submit", data={**form, "changes": changes})
        assert answer.status_code in {409, 422}, changes
        assert "secret" not in problem(answer.text), changes
        assert "root:" not in answer.text, changes


def test_a_viewer_checks_nothing(service: TestedService, client: TestClient) -> None:
    logged_in(service, client, "eve", role="viewer")
    for do in ("check", "submit"):
        form = {"how": "table", "file": "own.csv", "target": "b", "do": do}
        assert client.post("/submit", data=form).status_code == 403
    with pytest.raises(ForbiddenError):
        service.studies("eve", role="viewer").admitted(support.spec_of("a"))


@pytest.mark.parametrize("checkpoint", ["../model", "/etc", "near/model", "~root"])
def test_a_checkpoint_outside_of_the_folders_is_refused_wherever_it_lies(tmp_path, monkeypatch, checkpoint):
    uploads, here = tmp_path / "uploads", tmp_path / "here"
    for folder in (uploads / "vision", here / "near" / "model"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    policy = Policy(code_folders={}, uploads=uploads)
    (uploads / "vision" / "a.csv").write_text("text,label\n")
    options = {"train": "a.csv", "checkpoint": checkpoint}
    spec = parse_spec({"study": "a", "task": "text", "task_options": options})
    with pytest.raises(SpecError, match="checkpoint"):
        policy.admit(spec, source="spec", base_folder=uploads / "vision", project="vision")
    hub = parse_spec({"study": "a", "task": "text", "task_options": {**options, "checkpoint": "org/model"}})
    policy.admit(hub, source="spec", base_folder=uploads / "vision", project="vision")


def test_a_path_is_judged_as_it_is_opened(tmp_path: Path) -> None:
    """Links and `..` together: the kernel follows a link first, and a program may drop `link/..` as text."""
    data = tmp_path / "data"
    (data / "versions" / "v1").mkdir(parents=True)
    (data / "latest").symlink_to(data / "versions" / "v1")
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    (data / "secret.csv").write_text("a,b\n1,2\n")
    policy = Policy(code_folders={}, data_folders=(data,))
    options = {"train": f"{data}/latest/../../secret.csv", "target": "b"}
    spec = parse_spec({"study": "a", "task": "tabular", "task_options": options})
    with pytest.raises(SpecError, match=r"task_options\.train"):
        policy.admit(spec, source="spec", base_folder=data, project="vision")


def test_a_number_of_slots_that_no_cluster_has_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match=r"resources\.slots"):
        parse_spec({"study": "a", "task": "digits", "resources": {"slots": 10**9}})


def test_the_store_of_tokens_is_private(tmp_path: Path) -> None:
    from automl.commands.token import _store

    before = os.umask(0o022)
    try:
        _store(f"sqlite:///{tmp_path}/tokens.db").close()
    finally:
        os.umask(before)
    assert (tmp_path / "tokens.db").stat().st_mode & 0o077 == 0
