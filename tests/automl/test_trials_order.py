"""`automl trials --sort COLUMN --top N`: which trials are listed, and in which order."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies.storage.schema import tables as t
from tests.support.command_line import InProcess, message_of
from tests.support.stored_study import PARAMS, StoredStudy


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """A study of four trials: their errors are 1/3, 1/5, none and 1/2, their widths 48, 16, none and 32."""
    monkeypatch.setenv("COLUMNS", "160")
    study = StoredStudy(tmp_path)
    study.trial(epochs=2, state="pruned", cost_nano_usd=3_000_000)
    study.trial(epochs=4, state="complete", cost_nano_usd=9_000_000)
    study.trial(state="failed", failure="error", reason="KeyError: 'label'")
    study.trial(epochs=1, state="paused", cost_nano_usd=1_000_000)
    changed: dict[int, dict[str, Any]] = {
        1: {**PARAMS, "width": 16, "architecture": "cnn"}, 2: {"learning_rate": 0.5}, 3: {**PARAMS, "width": 32},
    }  # fmt: skip
    with study.store.engine.begin() as connection:
        for number, params in changed.items():
            connection.execute(sa.update(t.trials).where(t.trials.c.number == number).values(params=params))
    study.store.close()
    return InProcess(tmp_path, capsys, monkeypatch)


def numbers(place: InProcess, *arguments: str) -> list[int]:
    """Numbers of the trials that are listed, the same in every form."""
    told = json.loads(place.run("trials", "small", "--json", *arguments)[1])
    found = [one["trial"] for one in told]
    written = csv.DictReader(io.StringIO(place.run("trials", "small", "--format", "csv", *arguments)[1]))
    assert [int(row["trial"]) for row in written] == found
    lines = place.run("trials", "small", *arguments)[1].splitlines()
    cells = [line.split() for line in lines]
    assert [int(row[0]) for row in cells if row and row[0].isdigit()] == found
    return found


@pytest.mark.parametrize(
    ("column", "order"),
    [
        ("val_error", [1, 0, 3, 2]), ("val_error:asc", [1, 0, 3, 2]), ("values.val_error:desc", [3, 0, 1, 2]),
        ("cost_usd:desc", [1, 0, 3, 2]), ("epochs", [2, 3, 0, 1]), ("width", [1, 3, 0, 2]),
        ("params.width:desc", [0, 3, 1, 2]), ("learning_rate:desc", [2, 0, 1, 3]), ("architecture", [1, 0, 3, 2]),
        ("state", [1, 2, 3, 0]), ("failure", [2, 0, 1, 3]), ("trial:desc", [3, 2, 1, 0]),
    ],
)  # fmt: skip
def test_trials_are_listed_by_a_column_and_those_without_a_value_last(place, column, order):
    assert numbers(place, "--sort", column) == order


def test_the_first_ones_alone_are_listed_and_what_is_enqueued_stands_last_and_counts(place: InProcess) -> None:
    assert numbers(place, "--sort", "val_error", "--top", "2") == [1, 0]
    assert numbers(place, "--top", "3") == [0, 1, 2]
    assert numbers(place, "--top", "99") == [0, 1, 2, 3]
    assert place.run("enqueue", "small", "--param", "width=20")[0] == 0

    def names(*arguments: str) -> list[str]:
        lines = place.run("trials", "small", *arguments)[1].splitlines()
        return [line.split()[0] for line in lines[2:] if line.strip() and line.split()[0][-1].isdigit()]

    assert names("--sort", "trial:desc") == ["3", "2", "1", "0", "q5"]
    assert names("--top", "4") == ["0", "1", "2", "3"]
    assert names("--top", "5") == ["0", "1", "2", "3", "q5"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--sort", "val_eror"), ("--sort: found 'val_eror', allowed: a column", "Did you mean 'val_error'?")),
        (("--sort", "params.widht"), ("'params.widht'", "Did you mean 'params.width'?")),
        (("--sort", "val_error:down"), ("'val_error:down'", ":desc")),
        (("--sort", ""), ("--sort: found ''",)),
        (("--top", "0"), ("--top", "0")),
    ],
)
def test_a_column_that_is_none_is_refused(place: InProcess, arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    code, out, err = place.run("trials", "small", *arguments)
    assert (code, out) == (2, "")
    for part in says:
        assert part in message_of(err)


def test_a_study_without_trials_can_be_sorted(tmp_path, capsys, monkeypatch):
    bounds = [{"metric": "latency_ms", "max": 5}]
    StoredStudy(tmp_path, constraints=bounds).store.close()
    empty = InProcess(tmp_path, capsys, monkeypatch)
    for column in ("val_error", "width", "latency_ms:desc", "feasible", "cost_usd"):
        assert empty.run("trials", "small", "--json", "--sort", column) == (0, "[]\n", "")
