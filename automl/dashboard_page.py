"""The first page of `automl dashboard`: all studies of the store, with links to report, Optuna and MLflow."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from reports.page import render
from reports.page_templates import template
from reports.phrases import plural, usd
from reports.recommending import judged_of, named_value
from reports.state_wording import state_text
from studies.records.records import NANO, StudyLine
from studies.redact import redact
from studies.results.recommendation import recommended
from studies.storage.reading.reader import list_studies, load_study
from studies.storage.schema.engine import StoreError
from studies.storage.study_store import Store
from studies.storage.views.cursors import progress

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_BESTS: dict[str, tuple[int, str]] = {}  # revision and best value of each study, by its uid
REPORT, OPTUNA = "/report/", "/dashboard/"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A study on the page. Addresses are empty if there is nothing to open."""

    name: str
    state: str
    trials: str
    cost: str
    best: str
    created: str
    report: str
    optuna: str
    mlflow: str
    mlflow_command: str


def with_front_page(inner: Application, store: Store, id_of: Callable[[str], int | None]) -> Application:
    """Return an application that answers `/` and `/report/NAME` (drawn at each request), and forwards other paths."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", "")) or "/"
        if environ.get("REQUEST_METHOD") != "GET" or (path != "/" and not path.startswith(REPORT)):
            return inner(environ, start_response)
        if path == "/":
            return _answer(start_response, "200 OK", _front_page(store, id_of))
        # WSGI passes bytes as Latin-1 characters.
        name = unquote(path.removeprefix(REPORT)).encode("latin-1", "replace").decode("utf-8", "replace")
        if name not in store.study_names():
            return _answer(start_response, "404 Not Found", template("missing_study.html").render(name=name))
        return _answer(start_response, "200 OK", render(load_study(store, name)))

    return application


def _answer(start_response: Callable[..., Any], status: str, page: str) -> list[bytes]:
    body = page.encode()
    headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))]
    start_response(status, [*headers, ("Cache-Control", "no-store")])
    return [body]


def _front_page(store: Store, id_of: Callable[[str], int | None]) -> str:
    rows = [_row(store, line, id_of(line.name)) for line in reversed(list_studies(store))]
    return template("studies_page.html").render(rows=rows, store=redact(store.url))


def _row(store: Store, line: StudyLine, optuna_id: int | None) -> _Row:
    link, command = _mlflow(store, line.name)
    return _Row(
        name=line.name,
        state=state_text(line.name, line.state, driven=line.driven),
        trials=plural(line.trials, "trial"),
        cost=usd(line.cost_nano_usd / NANO),
        best=_best(store, line.name),
        created=f"{line.created_at:%Y-%m-%d %H:%M} UTC",
        report=f"{REPORT}{quote(line.name)}",
        optuna="" if optuna_id is None else f"{OPTUNA}studies/{optuna_id}",
        mlflow=link,
        mlflow_command=command,
    )


def _best(store: Store, name: str) -> str:
    """Return the recommended model and its value; a study is read again after its commits only."""
    with suppress(StoreError):  # the study was deleted since
        row = store.require(name)
        if _BESTS.get(row.uid, (-1, ""))[0] != row.revision:
            taken = recommended(study := load_study(store, name))
            _BESTS[row.uid] = row.revision, named_value(study, taken.point, judged_of(study)) if taken else ""
        return _BESTS[row.uid][1]
    return ""


def _mlflow(store: Store, name: str) -> tuple[str, str]:
    with suppress(StoreError):  # the study was deleted since
        view = progress(store, name).get("mlflow")
        uri = str(store.require(name).spec.get("mlflow"))
        if view is not None and view.is_wanted and view.link.startswith(("http://", "https://")):
            is_served = uri.startswith(("http:", "https:"))
            return view.link, "" if is_served else f"mlflow ui --backend-store-uri {redact(uri)}"
    return "", ""
