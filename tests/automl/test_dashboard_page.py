"""The first page of `automl dashboard`: every study with its links, reports drawn from the last commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automl.dashboard_server import application, make_http_server, with_front_page
from automl.stored.open_store import stored_form
from studies.spec.study_spec import parse_spec
from studies.storage.views import cursors
from studies.storage.views.optuna_view import open_storage
from tests.support.command_line import DIGITS, InProcess
from tests.support.stored_study import StoredStudy

IDS = {"small": 7}


class Browser:
    """Asks the application for pages, as a server does."""

    def __init__(self, study: StoredStudy) -> None:
        def inner(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [f"inner {environ['REQUEST_METHOD']} {environ['PATH_INFO']}".encode()]

        self._application = with_front_page(inner, study.store, IDS.get)

    def get(self, path: str, method: str = "GET") -> tuple[str, str]:
        said: list[str] = []
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path}
        body = b"".join(self._application(environ, lambda status, _headers: said.append(status)))
        return said[0].split()[0], body.decode()


@pytest.fixture
def study(tmp_path: Path) -> StoredStudy:
    made = StoredStudy(tmp_path, mlflow=f"sqlite:///{tmp_path}/mlflow.db")
    made.trial(epochs=2, checkpoints=(2,), state="complete", cost_nano_usd=120_000_000)
    made.change(state="closed", stop_reason="exhausted")
    return made


def test_each_study_has_its_links(study: StoredStudy, tmp_path: Path) -> None:
    spec = parse_spec({**DIGITS, "study": "other", "objectives": [{"metric": "val_error"}], "mlflow": "off"})
    study.store.create_study("other", stored_form(spec), str(tmp_path), 0.0)
    status, page = Browser(study).get("/")
    assert status == "200"
    assert page.index("<b>other</b>") < page.index("<b>small</b>"), "the newest is first"
    other, small = page.partition("<b>small</b>")[::2]
    assert 'href="/report/small"' in small
    assert 'href="/dashboard/studies/7"' in small
    assert "$0.12" in small
    assert "<td>val_error " in small
    assert "closed" in small
    assert 'href="/report/other"' in other
    assert "Optuna</a>" not in other, "it is not mirrored yet"
    assert "MLflow</a>" not in page, "nothing was mirrored"
    cursors.note_link(study.store, study.id, "mlflow", "http://127.0.0.1:5000/#/experiments/1")
    page = Browser(study).get("/")[1]
    assert 'href="http://127.0.0.1:5000/#/experiments/1"' in page
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db" in page
    cursors.note_link(study.store, study.id, "mlflow", "javascript:alert(1)")
    assert "javascript:" not in Browser(study).get("/")[1]


def test_a_report_is_that_of_the_last_commit(study: StoredStudy) -> None:
    browser = Browser(study)
    status, before = browser.get("/report/small")
    assert status == "200"
    assert "<title>" in before
    study.change(state="failed", stop_reason="error", error="the cluster has gone away")
    assert "the cluster has gone away" not in before
    assert "the cluster has gone away" in browser.get("/report/small")[1]


def test_a_study_that_is_not_there_is_named_and_its_name_is_escaped(study: StoredStudy) -> None:
    status, page = Browser(study).get("/report/<script>")
    assert status == "404"
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


@pytest.mark.parametrize(("method", "path"), [("GET", "/dashboard/"), ("GET", "/api/studies"), ("POST", "/")])
def test_all_else_is_left_to_optuna_dashboard(study: StoredStudy, method: str, path: str) -> None:
    assert Browser(study).get(path, method) == ("200", f"inner {method} {path}")


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_only_loopback_names_get_the_page(study: StoredStudy, own: str) -> None:
    storage = open_storage(study.store.url)
    app = application(storage, own, lambda inner: with_front_page(inner, study.store, IDS.get))
    address = f"[{own}]:8080" if ":" in own else f"{own}:8080"
    for host, status in ((address, "200 OK"), ("localhost:8080", "200 OK"), ("evil.example", "403 Forbidden")):
        said: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_HOST": host}
        body = b"".join(app(environ, lambda one, _headers, said=said: said.append(one)))  # type: ignore[misc]
        assert said == [status]
        assert (b"<b>small</b>" in body) is (status == "200 OK")
    storage.engine.dispose()


@pytest.mark.parametrize(("method", "origin", "status"), [
    ("GET", "http://localhost:8080", "200 OK"), ("GET", "http://evil.example", "403 Forbidden"),
    ("GET", "null", "403 Forbidden"), ("DELETE", "http://localhost:8080", "403 Forbidden"),
    ("POST", None, "403 Forbidden"), ("PUT", None, "403 Forbidden"), ("PATCH", None, "403 Forbidden"),
])  # fmt: skip
def test_the_dashboard_only_reads_and_only_for_its_own_pages(
    study: StoredStudy, method: str, origin: str | None, status: str
) -> None:
    storage = open_storage(study.store.url)
    app = application(storage, "127.0.0.1", lambda inner: with_front_page(inner, study.store, IDS.get))
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/", "HTTP_HOST": "localhost:8080"}
    said: list[str] = []
    list(app(environ | ({} if origin is None else {"HTTP_ORIGIN": origin}), lambda one, _headers: said.append(one)))
    assert said == [status]
    storage.engine.dispose()


@pytest.mark.medium
def test_the_command_says_where_the_page_is(study, tmp_path, capsys, monkeypatch):
    def interrupted(_server: object) -> None:
        raise KeyboardInterrupt

    made = make_http_server(lambda *_: [], "127.0.0.1", None)
    made.server_close()
    monkeypatch.setattr(type(made), "serve_forever", interrupted)
    monkeypatch.setattr("automl.dashboard_server._end_on_signals", lambda: None)
    code, out, err = InProcess(tmp_path, capsys, monkeypatch).run("dashboard", "--port", str(made.server_port))
    assert (code, err) == (0, "")
    assert out.startswith(f"Studies, reports, Optuna Dashboard: http://127.0.0.1:{made.server_port}/  (Ctrl-C ends it")
