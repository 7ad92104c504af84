"""A program drives a whole study over the Model Context Protocol, from launch to a confirmed recommendation."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
import yaml

from automl.service.workers import job_process
from automl.stored.auditing import audit
from studies.queueing import access_tokens
from studies.queueing.job_queue import JobQueue
from studies.queueing.turns import Start
from studies.records.records import NANO
from studies.storage.reading.reader import load_study
from tests.support.command_line import run_here
from tests.support.mcp_clients import over_http, over_stdio
from tests.support.team_service import SPEC, TeamService, team_service

LIMIT_USD = 8.0

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamService]:
    folder = tmp_path_factory.mktemp("team")
    with team_service(folder) as serving:
        JobQueue(serving.store).set_limit("project", "red", round(LIMIT_USD * NANO))
        for user in ("ann", "cat"):
            JobQueue(serving.store).set_limit("user", user, round(LIMIT_USD * NANO))
        yield serving


def run_jobs_during(client: Callable[[], None], queue: JobQueue) -> None:
    """Run the jobs of a queue in this process, as a worker of one slot, until a client in a thread has ended."""
    worker = queue.register("w", device="cpu", slots=1)
    with ThreadPoolExecutor(2) as threads:
        done = threads.submit(client)

        def beat() -> None:
            while not done.done():
                queue.beat(worker)
                time.sleep(0.5)

        threads.submit(beat)
        while not done.done():
            turn = queue.take_turn(worker, 1)
            if isinstance(turn, Start):
                assert job_process.run(queue.store, turn.job.run.id) == "done"
            time.sleep(0.05)
    done.result()


@pytest.mark.large
def test_a_study_from_launch_to_a_confirmed_recommendation(service, warm_pool, monkeypatch):
    """Ann searches, and Cat asks for the confirmation and pays for it."""
    run_here(monkeypatch, warm_pool)
    spec = yaml.safe_dump(SPEC | {"study": "whole"})
    cat, _ = access_tokens.create(service.store, name="cat", user="cat", project="red", role="member", days=1)
    before = []

    async def drive() -> None:
        async with over_stdio(service.folder, "--server", service.url, "mcp", AUTOML_TOKEN=service.ann) as call:
            plan = await call("launch", spec=spec)
            assert plan["started"] is False
            assert "at most $" in plan["expected_cost"]
            assert plan["accounts"][0]["limit_usd"] == LIMIT_USD
            refused = await call("launch", spec=spec, confirm_cost_usd=1.99)
            assert refused["started"] is False
            assert not JobQueue(service.store).find("red.whole")

            launched = await call("launch", spec=spec, confirm_cost_usd=2.0)
            name = launched["job"]["study"]
            assert (await call.until_it_ends(name))["job"]["state"] == "done"
            first = await call("recommendation", study=name)
            assert first["is_confirmed"] is False
            assert "confirm" in first["next"]

            assert (await call("explain_trial", study=name, trial=0))["state"] == "complete"
            compared = await call("compare_trials", study=name)
            assert compared["differing_parameters"] == ["learning_rate"]

            asked = {"study": name, "points": [first["point"]], "seeds": 1, "budget_usd": 1.5}
            expected = await call("confirm", **asked)
            assert expected["started"] is False
            assert expected["expected_usd"] > 0
            before.append(JobQueue(service.store).require(name).spent_nano_usd)
            async with over_http(service, cat) as other:
                confirming = await other("confirm", **asked, confirm_cost_usd=1.5)
            assert JobQueue(service.store).require(confirming["job"]["study"]).limit_nano_usd == 1.5 * NANO
            ended = await call.until_it_ends(confirming["job"]["study"])
            assert ended["job"]["state"] == "done", ended
            assert (await call("recommendation", study=name))["is_confirmed"] is True
            more = await call("resume", study=name, budget_usd=2.5)
            assert more["started"] is False
            assert more["budget_usd"] <= 2.5

    run_jobs_during(lambda: anyio.run(drive), JobQueue(service.store))
    record = load_study(service.store, "red.whole")
    assert record.spec["budget"]["usd"] == 2.0
    searched = sum(one.cost_nano_usd for one in record.charges if one.kind != "confirm")
    confirmed = sum(one.cost_nano_usd for one in record.charges if one.kind == "confirm")
    assert 0 < searched <= 2.0 * NANO
    assert 0 < confirmed <= 1.5 * NANO
    assert [one.trial for one in record.confirmations]
    accounts = JobQueue(service.store).accounts()
    assert all(one.spent_nano_usd <= one.limit_nano_usd for one in accounts)
    spent = {one.name: one.spent_nano_usd for one in accounts}
    assert [spent["ann"]] == before
    assert spent["ann"] + spent["cat"] == spent["red"] == record.cost_nano_usd
    assert audit(service.store, "red.whole")["findings"] == []
