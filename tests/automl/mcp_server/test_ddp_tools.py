"""The tools about DDP: real trainings on this machine, bounded by their money."""

import json
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from automl.backend import QueueBackend
from automl.cli import cli
from automl.mcp_server import bounded_training, ddp_tools
from automl.mcp_server.bounded_training import Machine, this_machine
from automl.mcp_server.ddp_tools import explained
from automl.mcp_server.server import TOOLS
from automl.mcp_server.tool import ToolProblem

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(900)]

MACHINE = Machine(device="cpu", device_name="CPU", slots=2, cores=2, usd_per_slot_hour=3.6, price_source="a test")


class _Mine:
    def why_no_training_here(self, *, own_code: bool) -> str:
        return ""


MINE: Any = _Mine()


def test_the_defaults_are_those_that_are_documented() -> None:
    given = TOOLS["run_ddp_simulation"].parameters["properties"]
    assert [given[name]["default"] for name in ("ranks", "epochs", "batch_size", "learning_rate")] == [4, 1, 32, 0.001]


def test_it_says_first_what_it_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_training, "run", lambda *_, **__: pytest.fail("it trained"))
    for answer in (
        ddp_tools.run_ddp_simulation(MINE, budget_usd=0.5, confirm_cost_usd=0.49),
        ddp_tools.compare_ddp_vs_single(MINE, budget_usd=0.5),
    ):
        assert answer["started"] is False
        assert answer["expected_usd"] > 0
        assert "confirm_cost_usd=0.5" in answer["next"]


@pytest.mark.parametrize(
    ("topic", "title", "said"),
    [
        ("LOCAL_RANK", "RANK and LOCAL_RANK", "number on its machine"),
        ("sampler", "What is exchanged", "DistributedSampler"),
        ("gradient exchange", "What is exchanged", "during the backward pass"),
        ("gloo or NCCL", "When to use what", "each rank has its own GPU"),
        ("mistakes", "Common mistakes", "NCCL timeout"),
        ("workflow under torchrun", "torchrun and several nodes", "torchrun"),
    ],
)
def test_topics_are_answered_from_the_guide(topic: str, title: str, said: str) -> None:
    answer = ddp_tools.about(topic)
    assert next(iter(answer["sections"])) == title
    assert said in answer["sections"][title]


def test_an_unknown_topic_names_the_sections() -> None:
    with pytest.raises(ToolProblem, match="the guide has no section on 'zebra'") as raised:
        ddp_tools.about("zebra")
    assert "Common mistakes" in raised.value.next_step


@pytest.mark.parametrize(
    ("speed_up", "efficiency", "said"),
    [(0.64, 0.32, "Use one rank here"), (1.4, 0.7, "if time counts more than money"), (1.8, 0.9, "Use 2 ranks")],
)
def test_a_comparison_ends_with_when_to_use_which(speed_up: float, efficiency: float, said: str) -> None:
    text = ddp_tools.when_to_use_which(2, {"speed_up": speed_up, "efficiency": efficiency})
    assert said in text
    assert f"{speed_up:.2f} times as fast" in text


def test_a_service_trains_only_built_in_tasks_on_its_machine() -> None:
    studies: Any = SimpleNamespace(identity=SimpleNamespace(is_admin=True))
    backend = QueueBackend(studies)
    for given in ({"task": "mine:train"}, {"task": "any.yaml"}, {"mlflow": "sqlite:////tmp/any.db"}):
        with pytest.raises(ToolProblem, match="only built-in tasks"):
            ddp_tools.run_ddp_simulation(backend, budget_usd=1.0, **given)
    assert ddp_tools.run_ddp_simulation(backend, budget_usd=1.0)["started"] is False


@pytest.mark.large
def test_a_real_training_of_two_ranks(tmp_path: Path) -> None:
    price = this_machine().usd(2, bounded_training.LONGEST_SECONDS)
    uri = f"sqlite:///{tmp_path}/runs.db"
    answer = ddp_tools.run_ddp_simulation(MINE, ranks=2, budget_usd=price, mlflow=uri, confirm_cost_usd=price)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as runs:
        assert ("trial 0", "FINISHED") in runs.execute("SELECT name, status FROM runs").fetchall()
    assert answer["effective_batch"] == 64
    assert answer["scaled_learning_rate"] == pytest.approx(0.001)
    assert [one["rank"] for one in answer["ranks"]] == [0, 1]
    for rank in answer["ranks"]:
        assert 2.0 < rank["first_loss"] < 3.0  # ten classes: log(10) before anything is learnt
        assert rank["seconds"] > 0
        assert rank["batches"] * 32 >= rank["samples"] > 500
    assert 0 < answer["cost_usd"] <= price
    expected, how = bounded_training.expected_seconds("train", 2)
    assert how == "measured in the latest training"
    assert expected == pytest.approx(answer["seconds"])


@pytest.mark.medium
def test_a_real_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in this process, and its ranks are forks of one process that has loaded torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainers.local.local_training", "trainers.loop.trainer"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _kind: context)

    def run_here(arguments: list[str], **_: Any) -> dict[str, Any]:
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1]) | {"seconds": 1.0, "cost_usd": 0.001}

    monkeypatch.setattr(bounded_training, "run", run_here)
    price = this_machine().usd(2, bounded_training.LONGEST_SECONDS)
    answer = ddp_tools.compare_ddp_vs_single(MINE, epochs=1, budget_usd=price, confirm_cost_usd=price)
    assert answer["efficiency"] == pytest.approx(answer["speed_up"] / 2)
    assert "times as fast" in answer["when_to_use_which"]
    assert answer["usd_per_epoch"]["single"] > 0
    assert answer["effective_batch"] == 64


@pytest.mark.medium
def test_money_ends_it() -> None:
    """Two slots at $3.6 an hour cost $0.002 a second: three seconds, in which no rank comes up."""
    arguments = ["train", "digits", "--world-size", "2", "--epochs", "1000", "--json"]
    with pytest.raises(ToolProblem, match="budget is used up") as raised:
        bounded_training.run(arguments, kind="train", ranks=2, budget_usd=0.006, machine=MACHINE)
    assert "larger budget_usd" in raised.value.next_step


@pytest.mark.medium
def test_what_is_wrong_is_told() -> None:
    with pytest.raises(ToolProblem, match="no-such-command"):
        bounded_training.run(["no-such-command"], kind="train", ranks=1, budget_usd=10.0, machine=MACHINE)


def test_the_concepts_have_figures_that_are_measured_here() -> None:
    figures = explained(MACHINE, 1e6, 4, 32, 0.001, 1000)["figures"]
    assert figures["effective_batch"] == 128
    assert figures["scaled_learning_rates"] == pytest.approx({"linear": 0.002, "sqrt": 0.001 * 2**0.5, "none": 0.001})
    assert figures["bytes_sent_by_each_rank_and_step"] == 6000
    assert figures["least_seconds_of_an_exchange"] == pytest.approx(0.006)
    assert figures["usd_an_hour"] == pytest.approx(14.4)
    answer = ddp_tools.explain_ddp_concepts()
    assert answer["machine"]["loopback_bytes_per_second"] > 1e6
    assert answer["machine"]["cores"] >= 1
