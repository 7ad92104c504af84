"""What tools answer to programs that ask for too much, for what is not theirs, or for nonsense."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import anyio
import httpx2
import pytest
from mcp import Client

from automl.commands.mcp import _backend
from automl.mcp_server import study_tools
from automl.mcp_server.server import TOOLS, make_server
from automl.mcp_server.tool import MOST_CHARACTERS, text_of
from studies.queueing.job_queue import JobQueue
from studies.queueing.jobs import JobState
from studies.storage.schema.engine import exists
from studies.storage.study_store import Store
from tests.support.mcp_clients import Caller, over_http, over_stdio
from tests.support.sessions import make_study, session_of
from tests.support.team_service import SPEC, TeamService, team_service

pytestmark = pytest.mark.xdist_group("mcp")

CHANGING = {"launch", "resume", "stop", "confirm", "enqueue", "run_ddp_simulation", "compare_ddp_vs_single"}
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 10**400, "", "\x00", "../../etc/passwd", "' OR 1=1 --", "x" * 60_000, [], [[[]]], {"a": {"b": []}},
    "{{7*7}}", "!!python/object/apply:os.system ['true']", "&a [*a, *a]",
)  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamService]:
    with team_service(tmp_path_factory.mktemp("team")) as serving:
        yield serving


async def _submitted(call: Caller, name: str) -> str:
    job = await call("launch", spec=SPEC | {"study": name}, confirm_cost_usd=2.0)
    return job["job"]["study"]


def test_hostile_arguments_get_answers(service: TeamService) -> None:
    known = {name: set(tool.parameters["properties"]) - {"seconds"} for name, tool in TOOLS.items()}
    before = JobQueue(service.store).jobs()

    async def drive() -> None:
        async with over_http(service, service.ann) as call:
            for tool in TOOLS:
                assert "error" in await call(tool, unknown=1)
                for value in HOSTILE[:12]:
                    given = dict.fromkeys(known[tool], value)
                    answer = await call(tool, **given)
                    assert "error" in answer or not given, (tool, value)
            for value in HOSTILE:
                for other in ({}, {"budget_usd": 1.0, "confirm_cost_usd": 1.0}):
                    assert "error" in await call("launch", spec=value, **other)
                    if value is not None:  # no space is that of the task
                        assert "error" in await call("launch", spec={"task": "digits", "space": value}, **other)
            for study in ("", "x" * 201, "a/b", "red.tiny:confirm-1", "%2e%2e"):
                assert "error" in await call("status", study=study)
            result = await call.client.call_tool("no_such_tool", {})
            assert result.is_error
            assert "launch" in result.content[0].text

    anyio.run(drive)
    assert JobQueue(service.store).jobs() == before


def test_each_state_of_a_job_says_what_to_do_next() -> None:
    assert set(study_tools._NEXT_BY_STATE) == set(get_args(JobState))


@pytest.mark.large
def test_a_token_of_another_project_sees_nothing_and_a_viewer_reads_only(service: TeamService) -> None:
    async def drive() -> None:
        async with over_http(service, service.ann) as call:
            name = await _submitted(call, "hidden")
            for reading in ("auto", "legacy"):
                async with over_http(service, service.bob, mode=reading) as other:
                    assert (await other("list_studies"))["studies"] == []
                    for tool, more in (
                        ("status", {}), ("watch", {"seconds": 0}), ("explain_trial", {"trial": 0}), ("stop", {}),
                        ("recommendation", {}), ("compare_trials", {}), ("resume", {"confirm_cost_usd": 9.0}),
                        ("confirm", {"budget_usd": 1.0, "confirm_cost_usd": 1.0}),
                    ):  # fmt: skip
                        answer = await other(tool, study=name, **more)
                        assert answer["error"].endswith("allowed: a study that you may see"), (tool, answer)
            async with over_http(service, service.viewer) as viewing:
                assert (await viewing("status", study=name))["job"]["state"] == "queued"
                answer = await viewing("launch", spec=SPEC | {"study": "mine"}, confirm_cost_usd=2.0)
                assert "viewer" in answer["error"]
                assert "person" in answer["next"]
                assert "viewer" in (await viewing("stop", study=name))["error"]
            assert JobQueue(service.store).require("red.hidden").state == "queued"
            assert (await call("stop", study=name))["job"]["state"] == "stopped"

    anyio.run(drive)


def test_no_call_is_answered_without_a_token_and_members_train_nothing_past_the_queue(service: TeamService) -> None:
    async def drive() -> None:
        async with over_http(service, service.ann) as call:
            for tool in ("run_ddp_simulation", "compare_ddp_vs_single"):
                answer = await call(tool, budget_usd=1.0, confirm_cost_usd=1.0)
                assert "role: only an admin may" in answer["error"]

    anyio.run(drive)
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    for headers in ({}, {"Authorization": "Bearer automl_wrong"}):
        with httpx2.Client(headers=accept | headers, trust_env=False) as client:
            for method in ("POST", "GET", "DELETE", "PUT"):
                assert client.request(method, f"{service.url}/mcp", json=body).status_code == 401


@pytest.mark.large
def test_a_read_only_server_refuses_what_changes(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/own.db"
    Store(store)

    async def drive() -> None:
        async with over_stdio(tmp_path, "mcp", "--store", store, "--read-only") as call:
            listed = {tool.name for tool in (await call.client.list_tools()).tools}
            assert listed == set(TOOLS) - CHANGING
            for tool in CHANGING:
                assert "read-only" in (await call(tool))["error"]
            assert (await call("list_studies"))["studies"] == []

    anyio.run(drive)
    assert JobQueue(Store(store)).jobs() == []


@pytest.mark.medium
def test_a_store_of_ones_own_with_a_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "from trainers.tasks.digits import Digits\n\n\nclass Own(Digits):\n    pass\n"
    (tmp_path / "own.py").write_text(source)
    store = f"sqlite:///{tmp_path}/own.db"
    spec = SPEC | {"task": "own:Own"}

    async def drive() -> None:
        backend = _backend(store, (), "artifacts", None)
        async with Client(make_server(lambda _context: backend, read_only=False)) as client:
            call = Caller(client)
            assert "own:Own" in (await call("launch", spec=spec))["error"]
            plan = await call("launch", spec=spec, code=tmp_path.name)
            assert plan["budget_usd"] == 2.0
            job = (await call("launch", spec=spec, code=tmp_path.name, confirm_cost_usd=2.0))["job"]
            assert (job["state"], job["project"]) == ("queued", "local")
            assert (await call("watch", study="tiny", seconds=0))["changed"] is False
            stopped = await call("stop", study="tiny")
            assert stopped["job"]["state"] == "stopped"
            again = await call("resume", study="tiny", confirm_cost_usd=2.0)
            assert again["job"]["state"] == "queued"

    anyio.run(drive)
    assert exists(store)


def test_answers_are_short() -> None:
    long = {"study": "x", "trials": [{"params": {f"p{i}": "y" * 5000 for i in range(100)}} for _ in range(1000)]}
    text = text_of(long | {"bad": float("nan")})
    assert len(text) <= MOST_CHARACTERS
    assert json.loads(text)["bad"] is None
    few = json.loads(text_of({"trials": list(range(100))}))["trials"]
    assert few[-1] == "... and 60 more"


def test_a_user_sees_the_studies_of_a_store_that_were_launched_without_the_queue(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/own.db")
    make_study(store, tmp_path)
    assert session_of(store).run() is not None
    backend = _backend(store.url, (tmp_path,), "artifacts", None)

    async def drive() -> None:
        async with Client(make_server(lambda _: backend, read_only=False)) as client:
            call = Caller(client)
            (listed,) = (await call("list_studies"))["studies"]
            assert (listed["study"], listed["state"]) == ("simulated", "done")
            assert listed["spent_usd"] > 0
            assert (await call("status", study="simulated"))["study"]["state"] == "closed"
            assert (await call("explain_trial", study="simulated", trial=0))["state"] == "complete"
            queued = await call("enqueue", study="simulated", params={"learning_rate": 0.25})
            assert queued["params"] == {"learning_rate": 0.25}
            assert "budget.trials" in queued["next"]
            assert (await call("stop", study="simulated"))["job"]["state"] == "done"
            resumed = await call("resume", study="simulated", trials=9, budget_usd=9.0, confirm_cost_usd=9.0)
            assert "automl resume simulated --set" in resumed["error"]
            assert "'other'" in (await call("status", study="other"))["error"]

    anyio.run(drive)
