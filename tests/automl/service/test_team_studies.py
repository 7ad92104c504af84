"""What an identity may see and change: its project's studies, in its role, within what the operator allows."""

from collections.abc import Callable
from typing import Any

import pytest

from automl.service.http_errors import ConflictError, ForbiddenError, MissingError
from automl.service.subprocess_questions import plan
from automl.service.workers import confirm_jobs
from automl.stored.open_store import from_store
from search_spaces.messages import UserError
from studies.queueing.jobs import CONFIRM_MARK
from studies.queueing.turns import Wait
from studies.records.records import NANO
from studies.spec.spec_errors import SpecError
from studies.storage.writing.changes import Charged
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
    # What was launched beside the service, in the same store, belongs to no project.
    service.store.create_study("vision.launched", {}, "/", 1.0)
    with pytest.raises(MissingError):
        ann.record("launched")


@pytest.mark.parametrize("what", ["stop", "cancel", "resume", "delete"])
def test_a_viewer_reads_only(service: TestedService, what: str) -> None:
    service.studies().submit(spec_of("a"))
    viewer = service.studies("eve", "vision", "viewer")
    assert viewer.status("a")["job"]["state"] == "queued"
    with pytest.raises(ForbiddenError, match=r"role: a viewer may only read\. Ask a member or an admin"):
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
        ({"task": "os:system"}, r"task: found 'os:system', allowed: built-in names, .*packages \(none\)"),
        ({"task": {"command": ["sh", "-c", "true"], "metrics": {"x": "(.*)"}}}, "task"),
        ({"search": {"sampler": "evil:Sampler"}}, "search.sampler: found 'evil:Sampler'"),
        ({"search": {"pruner": "evil:Pruner"}}, "search.pruner: found 'evil:Pruner'"),
        ({"search": {"from_studies": ["sqlite:///other.db#x"]}}, "search.from_studies: found 'sqlite:///other.db#x'"),
        ({"search": {"from_studies": ["nobody"]}}, "search.from_studies: found 'nobody'"),
        ({"resources": {"ray_address": "10.0.0.1:6379"}}, "resources.ray_address"),
        ({"resources": {"environment": ["SECRET"]}}, "resources.environment"),
        ({"task": "tabular", "task_options": {"train": "/etc/passwd", "target": "x"}}, "task_options.train"),
        ({"task": "tabular", "task_options": {"train": "../../etc/passwd", "target": "x"}}, "task_options.train"),
        ({"task": "tabular", "task_options": {"train": "~no-such-user/a.csv", "target": "y"}},
         r"spec: task_options\.train: found .*, allowed: a path; ~NAME needs a user"),
        ({"study": "../x"}, "study"),
        ({"study": "x" * 61}, "study: found"),
        ({"resources": {"slots": 3_000_000_000}}, r"resources\.slots: found 3000000000, allowed: .* up to 1e9"),
    ],
)  # fmt: skip
def test_what_the_operator_does_not_allow_is_refused_by_its_key(service, changes, place):
    with pytest.raises(SpecError, match=place):
        service.studies().submit(spec_of("a") | changes)
    assert service.queue.jobs() == []


def test_a_name_leaves_room_for_its_project_and_for_what_confirms_it(service: TestedService) -> None:
    """The columns of names take 100 characters."""
    ann = service.studies(project="p" * 50)
    with pytest.raises(SpecError, match=r"spec: study: found 's{35}', allowed: at most 34 characters in this project"):
        ann.submit(spec_of("s" * 35))
    job = ann.submit(spec_of("s" * 34))
    service.store.create_study(job.study, service.queue.spec_of(job)[0], "/", 0.0)
    assert from_store(service.queue.spec_of(job)[0], job.study).study == job.study
    assert len(f"{job.study}{CONFIRM_MARK}{10**6 - 1}") == 100


def finished(service: TestedService, name: str, **who: str) -> None:
    """Submit a study of a user, and let it be there, without trials, as after its start."""
    job = service.studies(**who).submit(spec_of(name))
    spec, base_folder = service.queue.spec_of(job)
    service.store.create_study(job.study, spec, base_folder, 0.0)


def test_a_study_learns_from_those_alone_that_its_user_may_see(service: TestedService) -> None:
    """Names of projects had dots once: `vision.a.secret` belongs to the project `vision.a`."""
    finished(service, "secret", user="bob", project="vision.a")
    finished(service, "own")
    learning = {"search": {"sampler": "random", "pruner": "none", "from_studies": ["a.secret"]}}
    with pytest.raises(SpecError, match=r"found 'a\.secret', allowed: studies of this service"):
        service.studies().admitted(spec_of("b") | learning)
    learning["search"]["from_studies"] = ["own"]
    spec, _ = service.studies().admitted(spec_of("b") | learning)
    assert spec.search.from_studies == ("vision.own",)
    service.studies().submit(spec_of("waits"))
    learning["search"]["from_studies"] = ["waits"]
    with pytest.raises(SpecError, match="found 'waits', which is queued, allowed: studies that have started"):
        service.studies().admitted(spec_of("b") | learning)


@pytest.mark.parametrize("what", ["enqueue", "cancel_trial", "check"])
def test_of_a_study_that_has_not_started_nobody_is_told_what_else_the_store_has(service, what):
    finished(service, "secret", user="bob", project="text")
    ann = service.studies()
    ann.submit(spec_of("a"))
    if what == "check":  # models are confirmed of what has ended
        ann.cancel("a")
    ask: dict[str, Callable[[], object]] = {
        "enqueue": lambda: ann.enqueue("a", {}),
        "cancel_trial": lambda: ann.cancel_trial("a", "0"),
        "check": lambda: confirm_jobs.check(ann, "a", (), 3),
    }
    with pytest.raises(UserError, match=r"the study 'vision\.a'") as refused:
        ask[what]()
    assert "secret" not in str(refused.value)
    assert isinstance(refused.value, MissingError)
    assert "has not started yet" in str(refused.value)


@pytest.mark.medium
def test_a_check_reads_earlier_studies_from_the_services_store_and_opens_no_other(service: TestedService) -> None:
    finished(service, "own")
    learning = {
        "search": {"sampler": "cokriging", "from_studies": ["own"]},
        "space": {"learning_rate": {"type": "float", "low": 0.01, "high": 0.5}},
        "store": f"sqlite:///{service.folder}/other.db",
    }
    found = plan(*service.studies().admitted(spec_of("b") | learning))
    assert found["study"] == "vision.b"
    assert not (service.folder / "other.db").exists()


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
    (code / "moons.py").write_text("class Moons:\n    pass\n")
    with_policy(service, code_folders={"team": code})
    job = service.studies().submit(spec_of("a", task="moons:Moons"), code="team")
    assert service.queue.spec_of(job)[1] == str(code)
    with pytest.raises(SpecError, match="code: found 'other', allowed: team"):
        service.studies().submit(spec_of("b", task="moons:Moons"), code="other")
    with pytest.raises(SpecError, match="task: found 'absent:Moons'"):
        service.studies().submit(spec_of("b", task="absent:Moons"), code="team")
    with pytest.raises(SpecError, match="task: found 'moons:Moons'"):  # without naming the folder
        service.studies().submit(spec_of("b", task="moons:Moons"))


def test_an_advisor_runs_if_the_operator_has_listed_its_whole_command_and_its_folder(service: TestedService) -> None:
    """Any member may write into the folder of uploads, where `advise.py` would be looked for."""
    code, uploads = service.folder / "code", service.folder / "uploads"
    code.mkdir()
    advisors = frozenset({("python", "advise.py")})
    with_policy(service, code_folders={"team": code}, uploads=uploads, advisors=advisors, commands=True)

    def advised(*command: str) -> dict[str, Any]:
        return spec_of("a", search={"advisor": {"command": list(command)}})

    refused = [
        (advised("sh", "-c", "id"), "team"),
        (advised("python", "advise.py", "-v"), "team"),
        (advised("python"), "team"),
    ]
    for spec, folder in [*refused, (advised("python", "advise.py"), None)]:
        with pytest.raises(
            SpecError, match=r"search\.advisor: found .*, one of the operator's advisors \(python advise\.py\)"
        ):
            service.studies().submit(spec, code=folder)
    assert service.studies().submit(advised("python", "advise.py"), code="team").state == "queued"


def test_data_are_read_from_the_operators_folders_and_links_lead_nowhere_else(service: TestedService) -> None:
    data = service.folder / "data"
    data.mkdir()
    (data / "train.csv").write_text("x,y\n1,2\n")
    (data / "link.csv").symlink_to("/etc/passwd")
    with_policy(service, data_folders=(data,))
    options = {"train": str(data / "train.csv"), "target": "y"}
    service.studies().submit(spec_of("a", task="tabular", task_options=options))
    texts = {"train": str(data / "train.csv"), "text": "~y", "label": "y", "checkpoint": "x" * 5000}
    assert service.studies().submit(spec_of("c", task="text", task_options=texts)).state == "queued"
    with pytest.raises(SpecError, match=r"task_options.train: found .*, allowed: a path below .*data"):
        service.studies().submit(
            spec_of("b", task="tabular", task_options={"train": str(data / "link.csv"), "target": "y"})
        )


def test_a_job_is_stopped_resumed_with_more_money_and_deleted(service: TestedService) -> None:
    ann = service.studies()
    ann.submit(spec_of("a"))
    assert ann.stop("a").state == "stopped"
    with pytest.raises(ConflictError, match=r"never started, so it cannot be changed\. Submit it again"):
        ann.resume("a", ["budget.usd=5"])
    for override in ("resources.price_per_slot_hour=0", "checkpoints.folder=/etc", "task=digits"):
        with pytest.raises(SpecError, match="allowed: budget, faults"):
            ann.resume("a", [override])
    assert ann.resume("a").state == "queued"
    with pytest.raises(ConflictError, match=r"is queued\. Only a job that ended"):
        ann.resume("a")
    with pytest.raises(ConflictError, match=r"is queued\. Cancel it before you delete it"):
        ann.delete("a")
    assert ann.cancel("a").state == "cancelled"
    assert "never started" in ann.delete("a")["message"]
    with pytest.raises(MissingError):
        ann.resume("a")
    assert ann.submit(spec_of("a")).state == "queued", "its name is free"


def test_a_deleted_study_is_not_resumed_for_more_money_than_its_account_has(service: TestedService) -> None:
    service.studies("root", "ops", "admin").set_limit("user", "ann", 10.0)
    ann = service.studies()
    ann.submit(spec_of("a", budget={"usd": 10.0, "hours": None, "trials": 2}))
    ann.cancel("a")
    spent = Charged(
        kind="idle", trial_id=None, attempt=None, slots=1, slot_numbers=(0,), since=0.0, seconds=1.0,
        usd_per_slot_hour=1.0, cost_nano_usd=10 * NANO, at=1.0,
    )  # fmt: skip
    job = ann.job("a")
    spec, folder = service.queue.spec_of(job)
    service.store.commit(service.store.create_study(job.study, spec, folder, 1.0), None, [spent])
    assert ann.delete("a")["message"].startswith("vision.a is deleted")
    with pytest.raises(MissingError):
        ann.resume("a")
    assert ann.jobs() == []
    ann.submit(spec_of("a"))
    worker = service.queue.register("w", device="cpu", slots=1)
    assert isinstance(service.queue.take_turn(worker, 1), Wait)
    assert ann.job("a").reason == "waits for money: user ann: $10 of $10 are spent"


@pytest.mark.parametrize("override", ["budget.usd=1000", "budget={usd: 1000}", "budget.hours=null", "budget.trials=9"])
def test_a_member_gives_another_budget_to_studies_of_their_own_alone(service: TestedService, override: str) -> None:
    """Its owner pays: who is blocked by a limit would spend the money of others."""
    finished(service, "a")
    ann, bob = service.studies(), service.studies("bob")
    service.studies("root", "ops", "admin").set_limit("user", "bob", 0.0)
    ann.stop("a")
    with pytest.raises(ForbiddenError, match=r"this study belongs to ann\. Only this user and admins"):
        bob.resume("a", ["faults.attempts=4", override])
    assert ann.job("a").state == "stopped"
    assert ann.record("a").spec["budget"]["usd"] == 1.0
    again = bob.resume("a", ["faults.attempts=4"])
    assert (again.user, again.limit_nano_usd) == ("ann", 1 * NANO)
    for who in (ann, service.studies("root", "ops", "admin")):
        ann.stop("a")
        assert who.resume("vision.a", [override]).user == "ann"


def test_limits_are_an_admins_and_seen_by_whom_they_concern(service: TestedService) -> None:
    root = service.studies("root", "ops", "admin")
    root.set_limit("user", "ann", 5.0)
    root.set_limit("project", "text", 9.0)
    assert [account.name for account in service.studies("ann", "vision").accounts()] == ["ann"]
    assert [account.name for account in root.accounts()] == ["text", "ann"]
    with pytest.raises(ForbiddenError, match="limits: only an admin may set them"):
        service.studies().set_limit("user", "ann", 50.0)
