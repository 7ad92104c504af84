"""Pages: logging in, forms with errors of one line, and nothing of another project on any of them."""

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from automl.service.pages.rendering import rendered
from automl.service.pages.study_view import view_of
from automl.service.pages.submit_pages import FURTHER, SHOWN, fields, offered_tasks, spec_of
from automl.service.pages.table_questions import head_of
from automl.service.workers import confirm_jobs
from studies.queueing.access_tokens import Role
from studies.queueing.jobs import Job
from studies.records.records import NANO, ConfirmationRecord
from studies.results import analysis
from studies.spec.study_spec import parse_spec
from tests.reports.test_page import hostile
from tests.support import service as support
from tests.support.service import TestedService, with_policy
from tests.support.stored_study import StoredStudy
from tests.support.study_factory import build_study
from trainers.protocol import TEST_PREFIX

HTML = {"Accept": "text/html"}


@pytest.fixture
def client(service: TestedService) -> Iterator[TestClient]:
    with_policy(service, uploads=service.folder / "uploads")
    with TestClient(service.app(), base_url="http://team.example", follow_redirects=False) as one:
        yield one


def logged_in(service: TestedService, client: TestClient, user: str = "ann", project: str = "vision",
              role: Role = "member") -> TestClient:  # fmt: skip
    client.cookies.clear()
    answer = client.post("/login", data={"token": service.token(user, project, role)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    return client


def problem(text: str) -> str:
    found = re.search(r'<p class="problem" role="alert">(.*?)</p>', text)
    assert found is not None, text
    return html.unescape(found[1])


def table(service: TestedService, rows: int = 120) -> None:
    folder = service.folder / "uploads/vision"
    folder.mkdir(parents=True)
    lines = [f"{n % 7},{(n * 5) % 11},{'yes' if n % 2 else 'no'}" for n in range(rows)]
    (folder / "churn.csv").write_text("\n".join(["age,visits,left", *lines]))


def test_a_token_logs_in_and_its_cookie_is_out_of_reach(service: TestedService, client: TestClient) -> None:
    assert client.get("/", headers=HTML).headers["location"] == "/login"
    assert client.get("/login").status_code == 200
    wrong = client.post("/login", data={"token": "automl_wrong"})
    assert wrong.status_code == 401
    assert "not valid" in problem(wrong.text)
    assert "automl_wrong" not in wrong.text
    assert not wrong.cookies
    answer = client.post("/login", data={"token": service.token()})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert client.get("/", headers=HTML).status_code == 200
    client.post("/logout")
    assert client.get("/", headers=HTML).status_code == 303


def test_behind_https_the_cookie_is_secure(service: TestedService) -> None:
    with TestClient(service.app(), base_url="https://team.example", follow_redirects=False) as client:
        assert "Secure" in client.post("/login", data={"token": service.token()}).headers["set-cookie"]


@pytest.mark.parametrize(("scheme", "is_secure"), [("https", True), ("HTTPS, http", True), ("http", False)])
def test_behind_a_proxy_on_another_machine_the_cookie_is_secure(service, client, scheme, is_secure):
    """Such as Docker's gateway, or the pod of an ingress, whom uvicorn does not believe."""
    headers = {"X-Forwarded-Proto": scheme}
    cookie = client.post("/login", data={"token": service.token()}, headers=headers).headers["set-cookie"]
    assert ("Secure" in cookie) == is_secure
    with_token = {**headers, **support.bearer(service.token())}  # a plain connection does not send such a cookie
    assert ("Secure" in client.post("/logout", headers=with_token).headers["set-cookie"]) == is_secure


def test_pages_run_their_own_scripts_only_and_one_of_another_site_logs_nobody_in(service, client):
    answer = client.post("/login", data={"token": service.token()}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    service.studies().submit(support.spec_of("a"))
    logged_in(service, client, role="admin")
    for path in ("/", "/submit", "/submit?how=form", "/spend", "/tokens", "/studies/vision.a", "/login"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?! src=)|\son[a-z]+=|style=|<style|https?://(?!team)", answer.text), path


def test_a_study_is_stopped_resumed_and_deleted_by_forms(service: TestedService, client: TestClient) -> None:
    service.studies().submit(support.spec_of("a"))
    logged_in(service, client)
    assert "vision.a" in client.get("/").text
    assert client.post("/studies/a/stop").headers["location"] == "/studies/a"
    assert ">stopped<" in client.get("/studies/a").text
    refused = client.post("/studies/a/delete")
    assert refused.status_code == 422
    assert "Tick the box" in problem(refused.text)
    assert client.post("/studies/a/resume").status_code == 303
    assert ">queued<" in client.get("/studies/a").text
    running = client.post("/studies/a/delete", data={"sure": "yes"})
    assert running.status_code == 409
    assert "Cancel it before you delete it" in problem(running.text)
    client.post("/studies/a/cancel")
    assert client.post("/studies/a/delete", data={"sure": "yes"}).headers["location"] == "/"


def test_a_budget_that_is_none_is_refused_in_one_line(service: TestedService, client: TestClient) -> None:
    service.studies().submit(support.spec_of("a"))
    service.store.create_study("vision.a", service.queue.spec_of(service.queue.require("vision.a"))[0], "/x", 0.0)
    service.studies().stop("a")
    logged_in(service, client)
    for wrong in ("much", "-1", "1 2", ".inf", "{a: 1}"):
        answer = client.post("/studies/a/resume", data={"usd": wrong})
        assert answer.status_code == 422, wrong
        assert "budget.usd" in problem(answer.text)
    assert client.post("/studies/a/resume", data={"usd": "2.5", "trials": "7"}).status_code == 303
    assert service.queue.require("vision.a").limit_nano_usd == round(2.5 * NANO)


def test_members_see_nothing_of_another_project_on_any_page(service: TestedService, client: TestClient) -> None:
    service.studies("bob", "speech").submit(support.spec_of("hidden"))
    service.queue.set_limit("project", "speech", 77 * NANO)
    logged_in(service, client)
    for path in ("/", "/submit", "/spend"):
        text = client.get(path).text
        assert not re.search(r"hidden\b(?!\")|speech|bob|77", text.replace('class="hidden"', "")), path
    for path in ("/studies/speech.hidden", "/studies/speech.hidden/trials/0", "/optuna/speech.hidden", "/tokens"):
        assert client.get(path, headers=HTML).status_code in {403, 404}, path
    for action in ("stop", "cancel", "resume", "delete", "nothing"):
        assert client.post(f"/studies/speech.hidden/{action}", data={"sure": "yes"}).status_code == 404
    assert service.queue.require("speech.hidden").state == "queued"
    assert client.post("/spend", data={"kind": "project", "name": "vision", "usd": "1000"}).status_code == 403


def test_a_viewer_has_no_buttons_and_changes_nothing(service: TestedService, client: TestClient) -> None:
    service.studies().submit(support.spec_of("a"))
    logged_in(service, client, "eve", role="viewer")
    text = client.get("/studies/a").text
    assert "/stop" not in text
    assert "/submit" not in text
    assert client.get("/submit").status_code == 403
    assert client.post("/studies/a/stop").status_code == 403
    assert client.post("/submit", data={"how": "yaml", "yaml": "study: b\ntask: digits"}).status_code == 403
    assert service.queue.require("vision.a").state == "queued"


def test_unknown_studies_are_told_on_a_page(service: TestedService, client: TestClient) -> None:
    answer = logged_in(service, client).get("/studies/%3Cscript%3E", headers=HTML)
    assert answer.status_code == 404
    assert "<script>" not in answer.text
    assert "allowed: a study that you may see" in problem(answer.text)
    for path in ("/studies/a/trials/x", "/studies/a/trials/0?rank=-1", f"/studies/a/models/{'9' * 41}"):
        answer = client.get(path, headers=HTML)
        assert (answer.status_code, problem(answer.text)) == (404, "There is no such page.")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"how": "table", "file": "../../automl.db", "target": "left"}, "name: found"),
        ({"how": "table", "file": "other.csv", "target": "left"}, "upload: found 'other.csv', allowed: churn.csv"),
        ({"how": "table", "file": "churn.csv", "target": ""}, "target"),
        ({"how": "table", "file": "churn.csv", "target": "nothing"}, "'nothing'"),
        ({"how": "form", "study": "a", "task": "digits", "budget.usd": "much"}, "budget.usd"),
        ({"how": "form", "study": "a", "task": "digits", "objectives": "[{"}, "form: objectives"),
        ({"how": "form", "study": "a", "task": "os:system"}, "task"),
        ({"how": "yaml", "yaml": "study: [a"}, "the text is not YAML"),
        ({"how": "yaml", "yaml": "- a"}, "not a mapping"),
        ({"how": "yaml", "yaml": "study: a\ntask: digits", "code": "nowhere"}, "code: found 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_what_was_filled_in_stays(service, client, form, said):
    table(service)
    answer = logged_in(service, client).post("/submit", data=form)
    assert answer.status_code in {404, 422}
    assert said in problem(answer.text)
    assert service.queue.jobs() == []
    kept = form.get("yaml") or form.get("study") or "churn.csv"
    assert html.escape(kept) in answer.text


def test_a_form_becomes_a_study(service: TestedService, client: TestClient) -> None:
    form = {
        "how": "form", "study": "shaped", "task": "digits", "objectives": "[{metric: val_error}]",
        "training.epochs": "3", "budget.usd": "0.25", "budget.hours": "null", "resources.slots": "2",
        "search.sampler": "random", "task_options": "",
    }  # fmt: skip
    answer = logged_in(service, client).post("/submit", data=form)
    assert answer.headers.get("location") == "/studies/vision.shaped", answer.text
    spec, _ = service.queue.spec_of(service.queue.require("vision.shaped"))
    assert (spec["training"]["epochs"], spec["budget"]["usd"], spec["budget"]["hours"]) == (3, 0.25, None)


def test_the_form_has_the_defaults_of_the_spec() -> None:
    """What a field shows as its default is what a study has that leaves it empty."""
    shown = {one.key: one for one in fields((*SHOWN, *FURTHER))}
    filled = {key: one.default for key, one in shown.items() if one.default}
    assert parse_spec(spec_of({**filled, "study": "a", "task": "digits"}), "form") == parse_spec(
        {"study": "a", "task": "digits"}, "form"
    )
    assert [key for key, one in shown.items() if one.is_required] == ["study", "task"]


def test_tasks_of_code_folders_are_offered_without_running_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit\nclass Churn: pass\ndef train(): pass\nclass _Own: pass\n")
    (tmp_path / "broken.py").write_text("class")
    assert offered_tasks({"own": tmp_path})[-2:] == ["mine:Churn", "mine:train"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("content", "read"),
    [
        ('\ufeff"a",b c\r\n1,x\r\n2,y\r\n', (("a", "b c"), ("1", "x"), "2 rows; commas between cells")),
        ("a;b\n1,5;<b>x</b>\n2,5;y\n", (("a", "b"), ("1,5", "<b>x</b>"), "semicolons")),
        ("1.5,2.5\n1.5,3.5\n", (("column_0", "column_1"), ("1.5", "2.5"), "the columns have no names")),
        ("a,b\n" + "1,x\n" * 200_000, (("a", "b"), ("1", "x"), "the first rows; commas")),
    ],
    ids=["commas", "semicolons", "no names", "long"],
)
def test_a_table_is_shown_as_a_study_would_read_it(service, client, content, read):
    columns, first, said = read
    file = service.folder / "uploads" / "vision" / "some.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode())
    head = head_of(file)
    assert (head.columns, head.rows[0], head.problem) == (columns, first, "")
    text = logged_in(service, client).get("/submit?how=table&file=some.csv").text
    assert all(f"<option>{name}</option>" in text for name in columns)
    assert said in text
    assert html.escape(first[1]) in text


@pytest.mark.medium
def test_a_table_that_cannot_be_read_says_why_and_changes_let_it_be_read(service, client):
    file = service.folder / "uploads" / "vision" / "some.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("größe;art\n".encode("latin-1") + b"".join(b"%d,5;%d\n" % (one, one % 2) for one in range(40)))
    page = logged_in(service, client).get("/submit?how=table&file=some.csv").text
    assert "task_options.encoding=" in problem(page)
    form = {"how": "table", "file": "some.csv", "target": "art", "do": "check"}
    changes = "task_options.encoding=latin-1\ntask_options.kind=regression\n"
    checked = client.post("/submit", data={**form, "changes": changes})
    assert checked.status_code == 200
    assert "kind: regression" in checked.text
    for change, said in (
        ("study=a\n" * 15_000 + "task=digits", "allowed: tabular"),
        ("task_options.validation=/etc/passwd", "task_options.validation"),
        ("task=os:system", "task: found"),
        ("task_options.encoding", "path=value"),
    ):
        refused = client.post("/submit", data={**form, "changes": change})
        assert (refused.status_code, said in problem(refused.text)) == (422, True), problem(refused.text)


def test_an_admin_sets_limits_and_sees_who_spent_what(service: TestedService, client: TestClient) -> None:
    service.studies().submit(support.spec_of("a"))
    logged_in(service, client, "root", "ops", "admin")
    assert client.post("/spend", data={"kind": "project", "name": "vision", "usd": "12.5"}).status_code == 303
    text = client.get("/spend").text
    assert "project vision" in text
    assert "user ann" in text
    assert "$12.50" in text
    for wrong in ({"usd": "-1"}, {"usd": "much"}, {"kind": "team"}, {"name": ""}):
        answer = client.post("/spend", data={"kind": "project", "name": "vision", "usd": "1", **wrong})
        assert answer.status_code == 422
        assert "form: " in problem(answer.text)
    client.post("/spend", data={"kind": "project", "name": "vision", "usd": ""})
    assert service.queue.accounts() == []


def test_an_admin_makes_and_revokes_tokens(service: TestedService, client: TestClient) -> None:
    logged_in(service, client, "root", "ops", "admin")
    made = client.post("/tokens", data={"name": "laptop", "user": "zoe", "project": "vision", "role": "viewer"})
    token = re.search(r'<code class="token">(automl_\S+)</code>', made.text)
    assert token[1] not in client.get("/tokens").text, "it is shown once"
    with TestClient(service.app(), headers=support.bearer(token[1])) as other:
        assert other.get("/api/v1/me").json()["role"] == "viewer"
        number = max(int(one) for one in re.findall(r"/tokens/(\d+)/revoke", made.text))
        assert client.post(f"/tokens/{number}/revoke").status_code == 303
        assert other.get("/api/v1/me").status_code == 401
    wrong = client.post("/tokens", data={"user": "zoe smith", "project": "vision", "role": "member"})
    assert wrong.status_code == 422
    assert "form: user" in problem(wrong.text)


ALWAYS = {
    "may_write": True, "has_token": True, "path": "/", "problem": "", "mlflow": "", "mlflow_server": "",
}  # fmt: skip
"""What each page is given, beside who looks at it."""


def job_of(service: TestedService) -> Any:
    service.studies().submit(support.spec_of("a"))
    return service.queue.require("vision.a")


def test_baselines_and_confirmed_values_stand_beside_the_kept_models(service: TestedService) -> None:
    study = build_study(30)
    first, metric = analysis.archive(study)[0], study.objectives[0].metric
    values = dict(study.started[first.trial].epochs[first.epoch - 1].metrics)
    fresh = [
        ConfirmationRecord(
            trial=first.trial, seed=seed, epoch=first.epoch, epochs=first.epoch, cost_nano_usd=1, checkpoint=None,
            metrics=values | {f"{TEST_PREFIX}{metric}": 0.25 + seed / 100}, confirmed_at=datetime.now(UTC),
        )
        for seed in (1, 2)
    ]  # fmt: skip
    named = [
        {"name": "today's model", "params": dict(study.started[0].params)},
        {"name": "always <the> mean", "metrics": {metric: 1e9}},
    ]
    study = replace(study, spec={**study.spec, "baselines": named}, confirmations=tuple(fresh))
    view = view_of(job_of(service), study)
    text = rendered("study.html", {"view": view, "identity": service.studies().identity, **ALWAYS})
    table = text[text.index('<table id="kept">') :].partition("</table>")[0]
    assert "today&#39;s model" in table
    assert "always &lt;the&gt; mean" in table
    assert f">confirmed {metric}<" in table
    assert table.count(" %, test<") == 1
    assert str(view.picture).count('class="level"') == 1, "one that is far worse than all trials is not drawn"


def test_texts_of_users_stay_texts(service: TestedService) -> None:
    """Names, parameters and reasons that try to be markup, and passwords in URLs."""
    view = view_of(job_of(service), hostile())
    text = rendered("study.html", {"view": view, "identity": service.studies().identity, **ALWAYS})
    assert "<img" not in text
    assert "<script>" not in text
    assert "<b>bold" not in text
    assert "secret-word" not in text


def test_a_paused_trial_says_why(service: TestedService) -> None:
    view = view_of(job_of(service), build_study(30))
    paused = [line for line in view.under_way if line["state"] == "paused"]
    assert all(line["why"] for line in paused)
    assert view.kept
    assert view.recommendation


def confirmed_study(service: TestedService) -> Job:
    """A study that has ended, whose job confirms its models in the queue."""
    plain = support.plain_submission("small", slots=2, limit_nano_usd=1)
    service.queue.ask(service.queue.submit(plain), "stop")
    StoredStudy(service.folder).trial(epochs=4, checkpoints=(2, 4), state="complete")
    return confirm_jobs.submit(service.studies(), "small", (), 3, 1.0)


def buttons(text: str) -> set[str]:
    return set(re.findall(r"<button[^>]*>([^<]+)<", text)) - {"Log out"}


def test_the_page_of_a_confirmation_leads_to_its_study(service: TestedService, client: TestClient) -> None:
    job = confirmed_study(service)
    page = logged_in(service, client).get(f"/studies/{job.study}").text
    assert "has not started yet" not in page
    assert re.search(r'trains models of <a href="/studies/small">small</a> again', page)
    assert buttons(page) == {"Stop", "Cancel for good"}
    service.studies().cancel(job.study)
    page = client.get(f"/studies/{job.study}").text
    assert buttons(page) == {"Resume", "Delete"}
    assert 'name="usd"' in page
    assert 'name="trials"' not in page
    answer = client.get(f"/api/v1/studies/{job.study}/trials", headers=support.bearer(service.token()))
    assert (answer.status_code, answer.json()["detail"]) == (
        404, f"the job '{job.study}' confirms models of another study. Name 'small', their study"
    )  # fmt: skip


@pytest.mark.medium
def test_a_deletion_that_broke_off_is_done_again_on_the_page(service: TestedService, client: TestClient) -> None:
    job = confirmed_study(service)
    service.studies().cancel(job.study)
    service.queue.settle_deleted(service.queue.require("small"))
    for name in (job.study, "small"):
        page = logged_in(service, client).get(f"/studies/{name}").text
        assert "deletion was interrupted: delete it again" in page
        assert buttons(page) == {"Delete"}
        assert 'data-over="yes"' in page
    assert 'href="/studies/small"' in client.get("/").text
    assert client.post("/studies/small/delete", data={"sure": "yes"}).headers["location"] == "/"
    assert "/studies/small" not in client.get("/").text
    assert client.get("/studies/small").status_code == 404
