"""The pages in a real browser: a table becomes a study that real workers run, and everybody can read it."""

import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from automl.service.team_studies import TeamStudies
from automl.standalone.serving.listening import listening_socket
from studies.queueing import access_tokens
from studies.queueing.access_tokens import Identity
from studies.queueing.job_queue import JobQueue
from studies.storage.study_store import Store
from tests.reports.conftest import browser  # noqa: F401 - the fixture
from tests.support import optional
from tests.support.databases import empty_database
from tests.support.paths import ROOT
from tests.support.served import served_service
from tests.support.service import TestedService, spec_of, with_policy
from tests.support.stored_study import StoredStudy

LONG_MS = 240_000.0
PAGES = ("/", "/studies/small", "/studies/small/trials/1", "/submit?how=table&file=flowers.csv", "/submit?how=form",
         "/submit?how=yaml", "/spend", "/tokens", "/login", "/studies/nothing")  # fmt: skip
IN_ALL_COLOURS = ("/", "/studies/small", "/submit?how=form", "/studies/nothing")


def flowers(path: Path) -> Path:
    """A table that trees and networks tell apart, though not without errors."""
    rng = random.Random(0)
    rows = ["length,width,colour,kind"]
    for _ in range(300):
        kind = rng.randrange(3)
        rows.append(
            f"{rng.gauss(kind, 0.7):.3f},{rng.gauss(2 * kind, 1.5):.3f},{rng.choice(['red', 'blue'])},{'abc'[kind]}"
        )
    path.write_text("\n".join(rows))
    return path


@pytest.mark.large
@pytest.mark.timeout(900)
def test_a_table_becomes_a_study_that_grows_stops_resumes_and_is_read(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "automl.db").write_bytes(empty_database())
    store = Store(f"sqlite:///{tmp_path}/automl.db")
    token, _ = access_tokens.create(store, name="x", user="ann", project="garden", role="member", days=None)
    queue = JobQueue(store)
    (tmp_path / "uploads").mkdir()
    options = ("--worker", "1", "--uploads", "uploads")
    with served_service(tmp_path, *options, PYTHONPATH=str(ROOT)) as address:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.set_default_timeout(LONG_MS)
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(address)
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Submit", exact=True).click()
        page.set_input_files("#chosen", flowers(tmp_path / "flowers.csv"))
        page.get_by_role("button", name="Upload", exact=True).click()
        page.get_by_label("column to predict").select_option("kind")
        page.get_by_label("name of the study").fill("bloom")
        page.get_by_label("largest number of trials").fill("40")
        page.get_by_label("budget in hours").fill("1")
        page.get_by_role("button", name="Check cost first").click()
        plan = page.locator("#plan").inner_text()
        assert "per slot and hour" in plan
        assert "target: column 'kind', 3 classes" in plan
        assert queue.jobs() == [], "it was a check"
        page.get_by_role("button", name="Submit", exact=True).click()

        page.wait_for_selector("#kept tbody tr")  # it comes by itself: nobody loads the page anew
        spec, _ = queue.spec_of(queue.require("garden.bloom"))
        assert (spec["task"], spec["budget"]["usd"], spec["budget"]["hours"]) == ("tabular", 2.0, 1.0)
        assert spec["task_options"]["train"] == str(tmp_path / "uploads/garden/flowers.csv")
        before = page.locator("circle.dot").count()
        page.wait_for_function("before => document.querySelectorAll('circle.dot').length > before", arg=before)
        assert re.search(r"\$\S+ of \$2\.00", page.locator("#money").inner_text())

        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector("#state .state.stopped")
        page.get_by_label("budget in dollars").fill("1.5")
        page.get_by_role("button", name="Resume").click()
        page.wait_for_function("() => document.querySelector('#money').innerText.includes('of $1.50')")
        page.wait_for_selector("#state .state:not(.stopped)")
        page.get_by_role("button", name="Cancel for good").click()
        page.wait_for_selector("#state .state.cancelled")
        page.get_by_role("link", name="Report").click()
        page.wait_for_selector(".main-svg")
        assert "bloom" in page.title() + page.locator("h1").inner_text()
        page.go_back()
        page.get_by_role("link", name="Optuna Dashboard").click()
        page.wait_for_url("**/dashboard/studies/*")
        page.get_by_text("garden.bloom").first.wait_for()
        page.goto(f"{address}/studies/bloom")
        page.locator("#kept a").first.click()
        page.get_by_role("heading", name="Why").wait_for()
        assert [one for one in complaints if "Content Security Policy" in one] == []
        page.context.close()
    store.close()


@pytest.fixture
def address(service: TestedService) -> Iterator[str]:
    """The pages of a machine's own service, with a study that has all kinds of trials."""
    with_policy(service, uploads=service.folder / "uploads")
    (service.folder / "uploads/local").mkdir(parents=True)
    flowers(service.folder / "uploads/local/flowers.csv")
    studies = TeamStudies(service.store, service.policy, Identity(user="ann", project="local", role="admin"))
    studies.submit(spec_of("small", space=None))
    studies.submit(spec_of("later", budget={"usd": 2.5, "hours": None, "trials": 3}))
    studies.submit(spec_of("given-up"))
    studies.cancel("given-up")
    service.queue.set_limit("project", "local", 10**10)
    worker = service.queue.register("machine-1", device="cpu", slots=1)
    service.queue.take_turn(worker, 1)
    stored = StoredStudy(service.folder)
    stored.trial(epochs=4, checkpoints=(2, 4), state="complete", reason="trained to the end")
    stored.trial(epochs=2, checkpoints=(2,), state="paused", reason="others promise more", cost_nano_usd=10**7)
    stored.trial(epochs=1)
    stored.store.close()
    socket = listening_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(service.app(needs_token=False), log_config=None))
    thread = threading.Thread(target=lambda: server.run(sockets=[socket]))
    thread.start()
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    socket.close()


@pytest.mark.large
@pytest.mark.parametrize(("width", "scheme", "pages"), [(400, "dark", PAGES), (1280, "light", IN_ALL_COLOURS)])
def test_axe_finds_nothing_serious(browser, address, width, scheme, pages):  # noqa: F811
    axe: Any = optional.module("axe_playwright_python.sync_playwright")
    # Axe is put into the page.
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for path in pages:
        page.goto(address + path)
        for summary in page.locator("summary").all():
            summary.click()
        found = axe.Axe().run(page).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}]
        assert serious == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than the screen"
    context.close()


@pytest.mark.medium
def test_pages_are_worked_by_keys(browser: Any, address: str) -> None:  # noqa: F811
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{address}/studies/small")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Enter")
    page.get_by_text("asked to stop").wait_for()
    page.goto(f"{address}/studies/given-up")
    page.locator("#delete summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("/studies/given-up"), "nothing is deleted without the tick"
    page.wait_for_function("document.activeElement.id === 'sure'")  # where the browser says what is missing
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}/")
    page.context.close()


def test_a_field_that_is_being_filled_in_is_left_alone(browser: Any, address: str, service: TestedService) -> None:  # noqa: F811
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{address}/studies/later")
    page.evaluate("document.getElementById('actions').insertAdjacentHTML('beforeend', '<input id=draft>')")
    page.fill("#draft", "half a word")
    job = service.queue.require("later")
    service.queue.ask(job, "stop")
    page.wait_for_selector("#state .state.stopped")
    assert page.input_value("#draft") == "half a word"
    page.context.close()
