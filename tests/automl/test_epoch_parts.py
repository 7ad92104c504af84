"""Epochs that take long are saved within: faults and drains lose the time since then, not the epoch."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from studies.control.machine import draining
from studies.records.records import StudyRecord
from tests.support.command_line import SLOW, Workplace, finish

pytestmark = pytest.mark.ray

EPOCH_SECONDS = 19.2
"""Thirty-two steps of 0.6 seconds."""
LONG_EPOCHS: dict[str, Any] = {
    "study": "long",
    "space": {**SLOW["space"], "fault": {"type": "categorical", "choices": ["very slow"]},
              "batch_per_rank": {"type": "categorical", "choices": [1]}},
    "training": {"epochs": 1, "warmup_epochs": 0, "reference_batch": 64},
    "budget": {"usd": 1.0, "hours": 0.5, "trials": 1},
    "checkpoints": {"every_seconds": 1},
}  # fmt: skip


def parts_charged(place: Workplace) -> int:
    return sum(charge.kind == "train" for charge in place.record("long").charges)


def wait_for_parts(place: Workplace, count: int) -> None:
    place.wait_for(lambda _: parts_charged(place) >= count, "long")


def file_to_go_on_from(place: Workplace) -> Path:
    (path,) = place.folder.glob("artifacts/**/epoch-0001.step-*.pt")
    return path


def lost_seconds(record: StudyRecord) -> float:
    return sum(charge.seconds for charge in record.charges if charge.kind == "lost")


def assert_whole(place: Workplace) -> StudyRecord:
    """The epoch was trained once, in parts, and its row has the cost of all of them."""
    record = place.record("long")
    (trial,) = record.started
    (epoch,) = trial.epochs
    trained = [charge for charge in record.charges if charge.kind == "train"]
    assert len(trained) >= 3
    assert epoch.cost_nano_usd == sum(charge.cost_nano_usd for charge in trained)
    assert trial.state == "complete"
    assert not list(place.folder.glob("artifacts/**/epoch-0001.step-*.pt")), "a part is of no use after its epoch"
    place.audit("long")  # which ends with 0 where nothing is wrong
    return record


@pytest.mark.large
def test_a_killed_rank_and_a_drain_within_an_epoch_lose_what_was_not_saved(place, monkeypatch):
    monkeypatch.setattr(draining, "END_SECONDS", 0.5)

    def disturb() -> None:
        wait_for_parts(place, 1)
        place.kill_rank(1)
        wait_for_parts(place, parts_charged(place) + 1)
        place.order_stop("long")

    space = dict(LONG_EPOCHS["space"], batch_per_rank=2)  # of half as many steps
    done = place.run(
        "launch", place.spec(SLOW, **LONG_EPOCHS | {"space": space}), "--json", code=130, meanwhile=disturb
    )
    assert json.loads(done.stdout)["state"] == "drained"
    (trial,) = place.record("long").started
    assert (trial.state, trial.epochs) == ("paused", ())
    assert [attempt.outcome for attempt in trial.attempts] == ["lost", "paused"]
    place.json("resume", "long")
    record = assert_whole(place)
    assert lost_seconds(record) < EPOCH_SECONDS / 2
    assert sum(charge.seconds for charge in record.charges if charge.kind == "train") < EPOCH_SECONDS


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_killed_controller_leaves_the_part_and_a_damaged_one_costs_its_epoch(
    place: Workplace, *, is_damaged: bool
) -> None:
    process = place.start("launch", place.spec(SLOW, **LONG_EPOCHS))
    wait_for_parts(place, 2)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    if is_damaged:
        file_to_go_on_from(place).write_bytes(b"no checkpoint")
    place.json("resume", "long")
    record = assert_whole(place)
    assert len(record.started[0].attempts) == 2 + is_damaged
    trained = sum(charge.seconds for charge in record.charges if charge.kind == "train")
    assert (trained > EPOCH_SECONDS + 2) == is_damaged
