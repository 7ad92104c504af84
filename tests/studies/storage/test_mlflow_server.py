"""A study that is over is written to an MLflow that is far away by several requests at once."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import make_server

from studies.money.budget import Limits
from studies.storage.views import mirror, mlflow_view
from tests.studies.storage.test_views import NAME, check_mlflow, drained, make_study
from tests.support.databases import mlflow_database
from tests.support.http_servers import serving

pytestmark = pytest.mark.filterwarnings("ignore:starlette.middleware.wsgi is deprecated")  # of MLflow's own server
AWAY_SECONDS = 0.02


class FarAway:
    """Middleware that lets each request to MLflow's API take its time, and counts those that are under way at once.

    Attributes:
        most: Largest number of requests that were under way at once.
        refuse: Function that says which paths get no answer but an error of the server.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app, self._now, self._lock = app, 0, threading.Lock()
        self.most = 0
        self.refuse: Callable[[str], bool] = lambda _: False

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            time.sleep(AWAY_SECONDS)
            if self.refuse(environ["PATH_INFO"]):
                start_response("500 Internal Server Error", [("Content-Length", "0")])
                return []
            return list(self._app(environ, start_response))
        finally:
            with self._lock:
                self._now -= 1


@pytest.fixture
def far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FarAway]]:
    """Address of MLflow's own server on a file, and what it saw."""
    from mlflow import server
    from mlflow.server import constants

    (tmp_path / "server.db").write_bytes(mlflow_database())
    monkeypatch.setenv(constants.BACKEND_STORE_URI_ENV_VAR, f"sqlite:///{tmp_path}/server.db")
    monkeypatch.setenv(constants.ARTIFACT_ROOT_ENV_VAR, str(tmp_path / "artifacts"))
    app = FarAway(server.app)
    with serving(make_server("127.0.0.1", 0, app, threaded=True)) as address:
        yield address, app


@pytest.mark.medium
def test_the_end_of_a_study_takes_several_requests_at_once(tmp_path, monkeypatch, far_away):
    address, app = far_away
    study = make_study(tmp_path, monkeypatch, mlflow=address)
    drained(study, Limits(trials=12), after_ends=8)
    assert mirror.catch_up(study.store, NAME)["mlflow"] is None
    check_mlflow(study.record(), address)
    assert 1 < app.most <= mlflow_view.AT_ONCE
    study.run(Limits(trials=12))
    assert mirror.catch_up(study.store, NAME)["mlflow"] is None
    check_mlflow(study.record(), address)


@pytest.mark.medium
def test_what_a_server_refuses_among_several_requests_is_written_later(tmp_path, monkeypatch, far_away):
    address, app = far_away
    study = make_study(tmp_path, monkeypatch, mlflow=address)
    study.run(Limits(trials=12))
    left = iter(range(3))
    app.refuse = lambda path: path.endswith("log-batch") and next(left, None) is None
    assert "500" in str(mirror.catch_up(study.store, NAME)["mlflow"])
    app.refuse = lambda _: False
    assert mirror.catch_up(study.store, NAME)["mlflow"] is None
    check_mlflow(study.record(), address)
