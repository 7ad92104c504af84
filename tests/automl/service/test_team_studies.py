"""What an identity may see and change: its project's studies, in its role, within what the operator allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automl.service.errors import ConflictError, ForbiddenError, MissingError
from studies.spec.errors import SpecError
from studies.storage.store import Store
from tests.support.service import TestedService, spec_of, with_policy


def test_projects_do_not_see_each_other_and_may_use_the_same_names(service: TestedService) -> None:
    ann, bob = service.studies("ann", "vision"), service.studies("bob", "text")
    assert ann.submit(spec_of("a")).study == "vision.a"
    assert bob.submit(spec_of("a")).study == "text.a"
    assert [job.study for job in ann.jobs()] == ["vision.a"]
    assert ann.job("a") == ann.job("vision.a")
    for name in ("text.a", "b", "", "text."):
        with pytest.raises(MissingError, match="allowed: a study that you may see"):
            ann.job(name)
    assert [job.study for job in service.studies("root", "ops", "admin").jobs()] == ["vision.a", "text.a"]
    assert service.studies("root", "ops", "admin").job("text.a").user == "bob"


@pytest.mark.parametrize("what", ["stop", "cancel", "resume", "delete"])
def test_a_viewer_reads_only(service: TestedService, what: str) -> None:
    service.studies().submit(spec_of("a"))
    viewer = service.studies("eve", "vision", "viewer")
    assert viewer.status("a")["job"]["state"] == "queued"
    with pytest.raises(ForbiddenError, match="found viewer, which only reads, allowed: member or admin"):
        getattr(viewer, what)("a")
    with pytest.raises(ForbiddenError):
        viewer.submit(spec_of("b"))


def test_members_may_be_patient_and_admins_may_displace_them(service: TestedService) -> None:
    assert service.studies().submit(spec_of("a"), priority=-5).priority == -5
    with pytest.raises(ForbiddenError, match="priority: found 1, allowed: -100 to 0 in your role"):
        service.studies().submit(spec_of("b"), priority=1)
    assert service.studies(role="admin").set_priority("a", 7).priority == 7


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"task": "os:system"}, r"task: found 'os:system', allowed: built-in ones, .*packages \(none\)"),
        ({"task": {"command": ["sh", "-c", "true"], "metrics": {"x": "(.*)"}}}, "task"),
        ({"search": {"sampler": "evil:Sampler"}}, "search.sampler: found 'evil:Sampler'"),
        ({"search": {"pruner": "evil:Pruner"}}, "search.pruner: found 'evil:Pruner'"),
        ({"search": {"from_studies": ["sqlite:///other.db#x"]}}, "search.from_studies: found 'sqlite:///other.db#x'"),
        ({"search": {"from_studies": ["nobody"]}}, "search.from_studies: found 'nobody'"),
        ({"resources": {"ray_address": "10.0.0.1:6379"}}, "resources.ray_address"),
        ({"resources": {"environment": ["SECRET"]}}, "resources.environment"),
        ({"task": "tabular", "task_options": {"train": "/etc/passwd", "target": "x"}}, "task_options.train"),
        ({"task": "tabular", "task_options": {"train": "../../etc/passwd", "target": "x"}}, "task_options.train"),
        ({"study": "../x"}, "study"),
        ({"study": "x" * 61}, "study: found"),
    ],
)
def test_what_the_operator_does_not_allow_is_refused_by_its_key(
    service: TestedService, changes: dict[str, Any], place: str
) -> None:
    with pytest.raises(SpecError, match=place):
        service.studies().submit(spec_of("a") | changes)
    assert service.queue.jobs() == []


def test_where_outputs_go_and_what_a_slot_costs_is_the_operators(service: TestedService) -> None:
    with_policy(service, usd_per_slot_hour=2.5, mlflow="off")
    greedy = spec_of("a", checkpoints={"folder": "/etc"}, mlflow="http://elsewhere")
    greedy["resources"] = {"slots": 1, "price_per_slot_hour": 0.0}
    job = service.studies().submit(greedy)
    spec, _ = service.queue.spec_of(job)
    assert spec["checkpoints"]["folder"] == str(service.folder / "artifacts/vision")
    assert spec["mlflow"] == "off"
    assert spec["resources"]["price_per_slot_hour"] == 2.5


def test_code_runs_from_the_operators_folders_alone(service: TestedService) -> None:
    code = service.folder / "code"
    code.mkdir()
    (code / "moons.py").write_text("")
    with_policy(service, code_folders={"team": code})
    job = service.studies().submit(spec_of("a", task="moons:Moons"), code="team")
    assert service.queue.spec_of(job)[1] == str(code)
    with pytest.raises(SpecError, match="code: found 'other', allowed: team"):
        service.studies().submit(spec_of("b", task="moons:Moons"), code="other")
    with pytest.raises(SpecError, match="task: found 'absent:Moons'"):
        service.studies().submit(spec_of("b", task="absent:Moons"), code="team")
    with pytest.raises(SpecError, match="task: found 'moons:Moons'"):  # without naming the folder
        service.studies().submit(spec_of("b", task="moons:Moons"))


def test_data_are_read_from_the_operators_folders_and_links_lead_nowhere_else(service: TestedService) -> None:
    data = service.folder / "data"
    data.mkdir()
    (data / "train.csv").write_text("x,y\n1,2\n")
    (data / "link.csv").symlink_to("/etc/passwd")
    with_policy(service, data_folders=(data,))
    options = {"train": str(data / "train.csv"), "target": "y"}
    service.studies().submit(spec_of("a", task="tabular", task_options=options))
    with pytest.raises(SpecError, match=r"task_options.train: found .*, allowed: a path below .*data"):
        service.studies().submit(
            spec_of("b", task="tabular", task_options={"train": str(data / "link.csv"), "target": "y"})
        )


def test_a_job_is_stopped_resumed_with_more_money_and_deleted(service: TestedService) -> None:
    ann = service.studies()
    ann.submit(spec_of("a"))
    assert ann.stop("a").state == "stopped"
    with pytest.raises(ConflictError, match="never started; allowed: a new submission"):
        ann.resume("a", ["budget.usd=5"])
    assert ann.resume("a").state == "queued"
    with pytest.raises(ConflictError, match="which is queued; allowed: one that has ended"):
        ann.resume("a")
    with pytest.raises(ConflictError, match="which is queued; allowed: one that has ended"):
        ann.delete("a")
    assert ann.cancel("a").state == "cancelled"
    assert "never started" in ann.delete("a")["message"]


def test_only_budget_and_faults_may_change(service: TestedService) -> None:
    ann = service.studies()
    ann.submit(spec_of("a"))
    ann.stop("a")
    for override in ("resources.price_per_slot_hour=0", "checkpoints.folder=/etc", "task=digits"):
        with pytest.raises(SpecError, match="allowed: budget, faults"):
            ann.resume("a", [override])


def test_limits_are_an_admins_and_seen_by_whom_they_concern(service: TestedService) -> None:
    root = service.studies("root", "ops", "admin")
    root.set_limit("user", "ann", 5.0)
    root.set_limit("project", "text", 9.0)
    assert [account.name for account in service.studies("ann", "vision").accounts()] == ["ann"]
    assert [account.name for account in root.accounts()] == ["text", "ann"]
    with pytest.raises(ForbiddenError, match="limits: found a role that may not set them, allowed: admin"):
        service.studies().set_limit("user", "ann", 50.0)


def test_a_study_without_a_job_is_nobodys(service: TestedService) -> None:
    """What was launched beside the service, in the same store, belongs to no project."""
    store: Store = service.store
    store.create_study("vision.launched", {}, str(Path.cwd()), 1.0)
    with pytest.raises(MissingError):
        service.studies().record("launched")
