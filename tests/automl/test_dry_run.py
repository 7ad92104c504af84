"""`automl launch --dry-run`: eight lines that say most, a cost that is expected, and nothing that is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from automl.launching import expected_cost
from automl.launching.dry_run import configurations, size_in_words
from automl.launching.expected_cost import EarlierCost, cost_of, earlier_cost
from automl.launching.prepared_study import Prepared, prepare
from automl.launching.spec_reading import read_spec
from search_spaces.space import Space
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from tests.support.command_line import DIGITS, InProcess
from tests.support.stored_study import StoredStudy

LINES = ["study", "task", "objectives", "space", "training", "slots", "budget", "cost"]
PRICE = {"slots": 2, "price_per_slot_hour": 3.6}


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.delenv("AUTOML_STORE", raising=False)
    write(tmp_path)
    return InProcess(tmp_path, capsys, monkeypatch)


def write(folder: Path, **sections: Any) -> None:
    spec = {**DIGITS, "objectives": [{"metric": "val_error"}], "resources": PRICE, **sections}
    (folder / "s.yaml").write_text(yaml.safe_dump(spec))


def lines_of(place: InProcess, *arguments: str) -> list[str]:
    code, out, err = place.run("launch", "s.yaml", "--dry-run", *arguments)
    assert (code, err) == (0, "")
    return out.splitlines()


def test_a_budget_pays_as_much_time_as_at_the_price_that_was_set(tmp_path: Path) -> None:
    """A resume warned of a budget that paid hardly a training, at the price that the spec has and nobody paid."""
    study = prepared(tmp_path, budget={"usd": 0.036}, resources=PRICE)
    assert expected_cost.most_slot_seconds(study) == pytest.approx(36.0)
    assert expected_cost.most_slot_seconds(study, 0.36) == pytest.approx(360.0)


def test_eight_lines_say_most_and_stand_first(place: InProcess) -> None:
    write(place.folder, constraints=[{"metric": "latency_ms", "max": 5}])
    lines = lines_of(place)
    assert [line.split()[0] for line in lines[:8]] == LINES
    said = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[:8]}
    assert said["study"] == f"small, in sqlite:///{place.folder}/automl.db"
    assert said["task"] == "digits"
    assert said["objectives"] == "val_error (minimize); latency_ms at most 5"
    assert said["space"].startswith("5 parameters (1 constant, 1 whole, 2 of choices, 1 continuous): architecture, ")
    assert said["training"] == "6 epochs, rungs 2, 4"
    assert said["slots"].startswith("2 x CPU, $3.60 per slot and hour")
    assert said["budget"] == "$1.00 or 30 min or 14 trials, whichever comes first"
    assert said["cost"] == (
        "unknown until the first epoch, because no study of this store has trained this task; at most $1.00"
    )
    assert [line.split()[:2] for line in lines[8:11]] == [["trial", str(number)] for number in range(3)]
    assert lines[-1] == "dry run: nothing was stored; --verbose shows the whole spec"
    assert not any(line.startswith("training:") for line in lines)


def test_the_whole_spec_follows_where_it_is_asked_for(place: InProcess) -> None:
    short, long = lines_of(place), lines_of(place, "--verbose")
    assert long[: len(short) - 1] == short[:-1]
    shown = yaml.safe_load("\n".join(long[len(short) + 1 :]))
    told = json.loads(place.run("launch", "s.yaml", "--dry-run", "--json")[1])
    assert shown == told["spec"]
    assert set(told) == {
        "study", "spec", "slots", "price", "rungs", "milestones", "earlier_studies", "data_check", "first_params",
        "expected_cost",
    }  # fmt: skip
    assert f"milestones  {', '.join(map(str, told['milestones']))}" in long


def trained(folder: Path, *, seconds: float = 10.0, price: float = 3.6, **sections: Any) -> StoredStudy:
    """A study of two trials of two ranks, 6 and 3 epochs of so many seconds each, and 100 charged slot-seconds."""
    study = StoredStudy(folder, **{"resources": PRICE, **sections})
    study.trial(epochs=6, state="complete", cost_nano_usd=1)
    study.trial(epochs=3, state="pruned", cost_nano_usd=1)
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.epochs).values(wall_seconds=seconds))
        connection.execute(sa.update(t.charges).values(slots=2, seconds=25.0, usd_per_slot_hour=price))
    return study


def test_the_cost_is_expected_by_what_trials_of_this_task_took(place: InProcess) -> None:
    study = trained(place.folder)
    found = cost_of(load_study(study.store, "small"))
    assert found == EarlierCost(
        study="small", trials=2, slot_seconds_per_epoch=20.0, slot_seconds_per_trial=50.0, epochs=6
    )
    study.store.close()
    write(place.folder, study="next")
    (line,) = [line for line in lines_of(place) if line.startswith("cost")]
    # 14 trials of 50 s at 3.6 dollars an hour; a full training takes 6 epochs of 20 s of one slot.
    assert line.split(maxsplit=1)[1] == (
        "about $0.70 in 5 min 50 s, when all trials are started (at most $1.00); "
        "the budget pays about 8 full trainings of 6 epochs, $0.12 each, by 2 trials of small"
    )
    told = json.loads(place.run("launch", "s.yaml", "--dry-run", "--json")[1])
    assert told["expected_cost"] == line.split(maxsplit=1)[1]


def test_a_team_is_told_nothing_of_the_costs_of_other_projects(place: InProcess) -> None:
    trained(place.folder).store.close()
    assert earlier_cost(prepared(place.folder)) is not None
    assert earlier_cost(prepared(place.folder), project="sma") is None
    assert earlier_cost(prepared(place.folder), project="small") is None, "its studies are named small.NAME"


@pytest.mark.parametrize("other", [{"task_options": {"digits": 3}}, {"task": "vision"}, {"task": "my_task:Digits"}])
def test_another_task_or_other_options_say_nothing(place: InProcess, other: dict[str, Any]) -> None:
    trained(place.folder, **other).store.close()
    write(place.folder, study="next")
    assert "unknown until the first epoch" in lines_of(place)[7]


@pytest.mark.parametrize(
    ("price", "resources", "slots"),
    [
        (7.2, PRICE, "slots of $7.20 an hour, not $3.60"),
        (3.6, PRICE | {"device": "cuda"}, "slots of the device cuda, not cpu"),
        (3.6, PRICE | {"cpus_per_rank": 8}, "slots of 8 CPUs, not 1"),
    ],
)
def test_seconds_of_other_slots_are_not_priced_as_those_of_the_plan(place, price, resources, slots):
    """Thirty seconds on a CPU are one on a GPU: at the price of the GPU the plan would be thirty times too dear."""
    trained(place.folder, price=price, resources=resources).store.close()
    write(place.folder, study="next")
    said = lines_of(place)[7].split(maxsplit=1)[1]
    assert said == f"unknown until the first epoch, because trials of small ran on {slots}; at most $1.00"


def test_a_study_on_such_slots_tells_the_cost_before_a_newer_one_on_others(place: InProcess) -> None:
    alike = trained(place.folder)
    with alike.store.engine.begin() as connection:
        connection.execute(sa.update(t.studies).values(name="first"))
    alike.store.close()
    trained(place.folder, resources=PRICE | {"cpus_per_rank": 8}).store.close()
    found = earlier_cost(prepared(place.folder))
    assert (found.study, found.other_slots) == ("first", "")


def test_a_store_that_cannot_be_read_costs_nothing_but_the_estimate(place: InProcess) -> None:
    (place.folder / "automl.db").write_bytes(b"not a database at all" * 100)
    assert "unknown until the first epoch" in lines_of(place)[7]
    assert (place.folder / "automl.db").read_bytes() == b"not a database at all" * 100


def prepared(folder: Path, **sections: Any) -> Prepared:
    write(folder, **sections)
    return prepare(read_spec(folder / "s.yaml", ()), source="s.yaml", base_folder=folder)


def test_a_store_of_another_server_that_is_away_says_nothing(tmp_path: Path) -> None:
    away = prepared(tmp_path, store="postgresql://me@127.0.0.1:9/none")
    assert earlier_cost(away) is None


KNOWN = EarlierCost(study="old", trials=3, slot_seconds_per_epoch=100.0, slot_seconds_per_trial=300.0, epochs=3)


@pytest.mark.parametrize(
    ("budget", "price", "says"),
    [
        ({"usd": 1.0, "hours": None, "trials": None}, 3.6, "about $1.00 in 8 min 20 s, when the budget is used up"),
        ({"usd": 1.0, "hours": 0.05, "trials": 99}, 3.6, "about $0.36 in 3 min, when the budget is used up"),
        ({"usd": None, "hours": None, "trials": 2}, 3.6, "about $1.20 in 10 min, when all trials are started (only"),
        ({"usd": None, "hours": None, "trials": 2}, 3.6, "a full training costs about $0.60, by 3 trials of old"),
        ({"usd": 0.3, "hours": None, "trials": 2}, 3.6, "the budget pays about 0.5 of a full training of 6 epochs"),
        ({"usd": None, "hours": 1.0, "trials": 2}, 0.0, "about 20 min of one slot in 10 min, when all trials"),
        ({"usd": None, "hours": 1.0, "trials": 2}, 0.0, "the budget pays about 12 full trainings of 6 epochs, 10 min"),
    ],
)
def test_what_ends_the_study_and_what_the_budget_pays(tmp_path, budget, price, says):
    """Trainings are twice as long as those that are known."""
    resources = {"slots": 2, "price_per_slot_hour": price}
    assert says in expected_cost.expected_cost(prepared(tmp_path, budget=budget, resources=resources), KNOWN)


@pytest.mark.parametrize(
    ("form", "count"),
    [
        ({}, 1),
        (
            {"a": {"type": "categorical", "choices": ["x", "y"]}, "b": {"type": "int", "low": 1, "high": 9, "step": 3}},
            6,
        ),
        ({"a": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.25}}, 5),
        ({"a": {"type": "float", "low": 0.0, "high": 1.0}}, None),
        (
            {
                "kind": {"type": "categorical", "choices": ["mlp", "cnn", "linear"]},
                "depth": {"type": "int", "low": 1, "high": 4, "when": {"kind": ["mlp", "cnn"]}},
                "width": {"type": "int", "low": 8, "high": 10, "when": {"kind": "mlp"}},
                "last": {"type": "categorical", "choices": [0, 1], "when": {"depth": [4]}},
            },
            1 + 5 + 5 * 3,
        ),
        ({"a": {"type": "int", "low": 1, "high": 10**9}}, 10**9),
    ],
)
def test_configurations_are_counted_with_their_conditions(form: dict[str, Any], count: int | None) -> None:
    assert configurations(Space.from_dict(form)) == count


def test_the_size_of_a_space_in_words() -> None:
    assert size_in_words(Space({})) == "no parameter, so all trials are equal"
    one = Space.from_dict({"width": {"type": "int", "low": 1, "high": 2000}})
    assert size_in_words(one) == "1 parameter (1 whole), 2,000 configurations: width"
    large = Space.from_dict({"width": {"type": "int", "low": 1, "high": 2 * 10**9}})
    assert "about 2e+09 configurations" in size_in_words(large)
