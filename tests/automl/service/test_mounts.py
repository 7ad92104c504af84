"""Optuna Dashboard and MLflow behind the login: a project sees its own studies there, and nothing is written."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import optuna
import pytest
from fastapi.testclient import TestClient

from automl.service.http.gate import COOKIE
from automl.service.mounts.mlflow_proxy import PREFIX
from automl.service.mounts.optuna_mount import LastingIds, ProjectStorage
from studies.storage.views.optuna_view import UID_ATTRIBUTE, open_storage
from tests.support.http_servers import answered_by
from tests.support.service import TestedService, bearer, spec_of, with_policy


@pytest.fixture
def ids(service: TestedService) -> dict[str, int]:
    """A study of each of two projects and one of nobody, with a trial each, in Optuna's tables."""
    service.studies().submit(spec_of("a"))
    service.studies("bob", "speech").submit(spec_of("b"))
    storage = open_storage(service.store.url)
    found = {}
    for name in ("vision.a", "speech.b", "older"):
        study = optuna.create_study(storage=storage, study_name=name, directions=["minimize", "minimize"])
        study.set_user_attr("note", f"secret of {name}")
        for number in range(3):
            x = {"x": optuna.distributions.FloatDistribution(0, 1)}
            study.add_trial(optuna.trial.create_trial(params={"x": number / 3}, distributions=x, values=[number, 1]))
        found[name] = int(storage.get_study_id_from_name(name))
    storage.engine.dispose()
    return found


@pytest.fixture
def client(service: TestedService) -> Iterator[TestClient]:
    with TestClient(service.app(), follow_redirects=False) as one:
        yield one


@pytest.mark.medium
def test_the_dashboard_is_there_for_who_is_logged_in(service, client, ids):
    for path in ("/dashboard", "/api/studies", "/static/bundle.js", f"/csv/{ids['vision.a']}", "/favicon.ico"):
        assert client.get(path).status_code == 401, path
    headers = bearer(service.token())
    assert "bundle.js" in client.get("/dashboard", headers=headers).text
    assert client.get("/static/bundle.js", headers=headers).status_code == 200
    assert client.get("/optuna/", headers=headers).headers["location"] == "/dashboard"
    own = client.get("/optuna/a", headers=headers).headers["location"]
    assert own == f"/dashboard/studies/{ids['vision.a']}"
    assert client.get(own, headers=headers).status_code == 200


@pytest.mark.medium
def test_a_project_sees_its_own_studies_in_the_dashboard(service, client, ids):
    headers = bearer(service.token())
    listed = client.get("/api/studies", headers=headers)
    assert [one["study_name"] for one in listed.json()["study_summaries"]] == ["vision.a"]
    answer = client.get(f"/api/studies/{ids['vision.a']}?after=0", headers=headers)
    assert len(answer.json()["trials"]) == 3
    assert "vision.a" in client.get(f"/csv/{ids['vision.a']}", headers=headers).headers["content-disposition"]
    for other in (ids["speech.b"], ids["older"], 999):
        for path in ("/api/studies/{}", "/api/studies/{}?after=0", "/api/studies/{}/param_importances", "/csv/{}",
                     "/api/studies/{}/plot/contour", "/api/studies/{}/"):  # fmt: skip
            answer = client.get(path.format(other), headers=headers)
            assert answer.status_code == 404, (path, answer.text)
            assert "secret" not in answer.text
    assert client.get("/optuna/speech.b", headers=headers).status_code == 404


def test_an_admin_sees_all_studies_in_the_dashboard(service, client, ids):
    client.get("/api/studies", headers=bearer(service.token()))  # a member's is made first
    headers = bearer(service.token("root", "vision", "admin"))
    names = [one["study_name"] for one in client.get("/api/studies", headers=headers).json()["study_summaries"]]
    assert names == list(ids)
    assert client.get(f"/api/studies/{ids['older']}?after=0", headers=headers).status_code == 200


@pytest.mark.parametrize("role", ["member", "admin"])
def test_nothing_is_written_through_the_dashboard(service, client, ids, role):
    headers, own = bearer(service.token(role=role)), ids["vision.a"]
    for method, path, body in (
        ("DELETE", f"/api/studies/{own}", {}),
        ("POST", "/api/studies", {"study_name": "new", "directions": ["minimize"]}),
        ("POST", f"/api/studies/{own}/rename", {"study_name": "new"}),
        ("PUT", f"/api/studies/{own}/note", {"version": 1, "body": "x"}),
        ("POST", "/api/trials/1/tell", {"state": "Fail"}),
        ("POST", "/api/trials/1/user-attrs", {"user_attrs": {"a": 1}}),
    ):
        assert client.request(method, path, json=body, headers=headers).status_code in {403, 404, 405}, path
    names = [one["study_name"] for one in client.get("/api/studies", headers=headers).json()["study_summaries"]]
    assert "new" not in names
    assert "vision.a" in names


@pytest.mark.parametrize("path", ["/api/artifacts/1/2", "/api/meta/x", "/artifacts/1/1/x", "/api/migration"])
def test_what_is_not_known_to_be_of_a_study_is_not_asked(service: TestedService, client: TestClient, path: str) -> None:
    assert client.get(path, headers=bearer(service.token())).status_code == 404


def test_the_storage_of_a_project_knows_nothing_of_others_and_refuses_to_write(service, ids):
    """The routes look first; the storage itself holds, too."""
    inner = open_storage(service.store.url)
    storage = ProjectStorage(inner, lambda: {"vision.a"}, LastingIds())
    reads = [name for name in vars(ProjectStorage) if name.startswith("get_") and name != "get_all_studies"]
    assert len(reads) == 7
    for name in reads:
        argument: Any = "speech.b" if name == "get_study_id_from_name" else ids["speech.b"]
        with pytest.raises(KeyError):
            getattr(storage, name)(argument)
    writes = [name for name in optuna.storages.BaseStorage.__abstractmethods__ if not name.startswith("get_")]
    assert len(writes) == 10
    for name in writes:
        with pytest.raises(RuntimeError, match="read-only"):
            getattr(storage, name)(ids["vision.a"])
    inner.engine.dispose()


def optuna_study(storage: optuna.storages.RDBStorage, name: str, parameter: str, uid: str) -> int:
    """Add a mirrored study with one parameter and twelve trials; returns Optuna's id of it."""
    study = optuna.create_study(storage=storage, study_name=name, directions=["minimize", "minimize"])
    study.set_user_attr(UID_ATTRIBUTE, uid)
    for number in range(12):
        x = {parameter: optuna.distributions.FloatDistribution(0, 1)}
        params, values = {parameter: number / 12}, [number, -number]
        study.add_trial(optuna.trial.create_trial(params=params, distributions=x, values=values))
    return int(storage.get_study_id_from_name(name))


@pytest.mark.medium
def test_who_gets_the_id_of_a_deleted_study_sees_nothing_of_it(service: TestedService, client: TestClient) -> None:
    """SQLite gives an id again; the dashboard remembers by id what it has worked out, importances for all projects."""
    service.studies().submit(spec_of("a"))
    service.studies("bob", "speech").submit(spec_of("b"))
    ann, bob = bearer(service.token()), bearer(service.token("bob", "speech"))
    storage = open_storage(service.store.url)

    def told(headers: dict[str, str], name: str) -> str:
        number = client.get(f"/optuna/{name}", headers=headers).headers["location"].rpartition("/")[2]
        asked = [client.get(f"/api/studies/{number}{of}", headers=headers) for of in ("", "/param_importances")]
        assert [answer.status_code for answer in asked] == [200, 200]
        return "".join(answer.text for answer in asked)

    first = optuna_study(storage, "vision.a", "hidden", "1")
    assert "hidden" in told(ann, "a")
    storage.delete_study(first)
    assert optuna_study(storage, "speech.b", "open", "2") == first
    assert "hidden" not in told(bob, "b")
    assert "open" in told(bob, "b")
    assert client.get(f"/api/studies/{first}/param_importances", headers=ann).status_code == 404
    storage.delete_study(first)
    assert optuna_study(storage, "vision.a", "shown", "3") == first
    assert "hidden" not in told(ann, "a"), "of a new study of the same name, too"
    assert "shown" in told(ann, "a")
    storage.engine.dispose()


def test_a_page_of_all_studies_asks_once_which_of_them_may_be_seen(service: TestedService, ids: dict[str, int]) -> None:
    inner, asked = open_storage(service.store.url), []
    assert len(inner.get_all_studies()) > 1
    storage = ProjectStorage(inner, lambda: asked.append(1) or set(ids), LastingIds())  # type: ignore[func-returns-value]
    assert len(storage.get_all_studies()) == len(ids)
    assert asked == [1]
    inner.engine.dispose()


class Told(BaseHTTPRequestHandler):
    """Says what it was asked, as MLflow's server would be."""

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        told = {"method": self.command, "path": self.path, "headers": dict(self.headers.items()),
                "body": self.rfile.read(length).decode()}  # fmt: skip
        body = json.dumps(told).encode()
        moved = self.path.endswith("/moved")
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}{PREFIX}/there")
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "theirs=1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def mlflow_url() -> Iterator[str]:
    with answered_by(Told) as address:
        yield address


def test_an_admin_alone_reaches_mlflow_without_handing_over_the_token(service: TestedService, mlflow_url: str) -> None:
    with_policy(service, mlflow_server=mlflow_url)
    token = service.token(role="admin")
    with TestClient(service.app(), headers=bearer(token), follow_redirects=False) as client:
        client.cookies.set(COOKIE, service.session(role="admin"))
        assert client.get("/mlflow").headers["location"] == "/mlflow/"
        page = client.get("/mlflow/")
        asked = client.post("/mlflow/ajax-api/2.0/mlflow/runs/search?a=%2F&b=1", content=b'{"max": 1}')
        moved = client.get("/mlflow/moved")
        logged = client.get("/mlflow/get-artifact?path=evil.html&run_uuid=1")
        assert 'href="/mlflow/"' in client.get("/", headers={"Accept": "text/html"}).text
    assert (page.status_code, page.json()["path"]) == (200, "/mlflow/")
    told = asked.json()
    assert (told["method"], told["body"]) == ("POST", '{"max": 1}')
    assert told["path"] == "/mlflow/ajax-api/2.0/mlflow/runs/search?a=%2F&b=1"
    assert token not in asked.text
    assert "set-cookie" not in asked.headers
    assert moved.headers["location"] == "/mlflow/there"
    assert logged.headers["content-security-policy"].startswith("sandbox;"), "it runs nothing in the admin's name"
    assert logged.headers["x-content-type-options"] == "nosniff"
    with TestClient(service.app()) as client:
        for path in ("/mlflow/", "/mlflow/get-artifact"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=bearer(service.token())).status_code == 403, "a member's"


def test_a_server_that_is_away_is_told(service: TestedService) -> None:
    with_policy(service, mlflow_server="http://127.0.0.1:1")
    with TestClient(service.app(), headers=bearer(service.token(role="admin"))) as client:
        answer = client.get("/mlflow/")
        assert (answer.status_code, answer.json()["detail"]) == (502, "the MLflow server does not answer")
    with_policy(service, mlflow_server="")
    with TestClient(service.app(), headers=bearer(service.token(role="admin"))) as client:
        assert client.get("/mlflow/").status_code == 404
