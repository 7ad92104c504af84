"""`automl ab`: what two versions have answered, and which of them is right more often."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from automl.exporting.errors import ExportError
from automl.registry.registered import COMPARED_WITH, Registry
from automl.registry.served_answers import answered, outcomes_in
from automl.registry.significance import compare_losses
from automl.standalone.serving.answer_log import AnswerLog, answer_files, check_folder
from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.roles import CHALLENGER, CHAMPION
from tests.support.command_line import Workplace
from tests.support.disks import fill, tiny_disk
from tests.support.stored_study import StoredStudy


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    study = StoredStudy(tmp_path)
    workplace = Workplace(tmp_path, None)
    yield workplace
    study.store.close()


def register(folder: Path, error: float, comparison: str = "") -> None:
    model = folder / "some-model"
    model.mkdir(exist_ok=True)
    (model / "MLmodel").write_text("artifact_path: model\n")
    registry = Registry(f"sqlite:///{folder}/mlflow.db")
    confirmed = {"seeds": 2, "metrics": {"val_error": {"mean": error, "deviation": 0.01, "values": [error]}}}
    tags = {"automl.confirmed": json.dumps(confirmed)}
    tags |= {"automl.comparison": comparison, COMPARED_WITH: "1"} if comparison else {}
    version = registry.register(
        "moons", model, experiment="moons", tags=tags, metrics={}, params={}, spec={"task": "digits"}, at=1.0
    )
    registry.name_version(version, CHALLENGER if comparison else CHAMPION)


def keep(folder: Path, version: str, role: str, *, wrong: float, count: int) -> dict[str, str]:
    """Answers of a version that is wrong that often; returns what turned out to be true."""
    draw, log = random.Random(version), AnswerLog(folder, 2**20)
    outcomes = {}
    for number in range(count):
        name = f"{role}-{number}"
        outcomes[name] = draw.choice("ab")
        label = outcomes[name] if draw.random() >= wrong else "ab"[outcomes[name] == "a"]
        answer = {"label": label, "confidence": 0.75, "probabilities": {"a": 0.75, "b": 0.25}}
        log.note({name: answer}, version=version, role=role, seconds=0.002)
    log.close()
    return outcomes


def test_the_one_that_is_right_more_often_is_better(place: Workplace, tmp_path: Path) -> None:
    register(tmp_path, 0.2)
    register(tmp_path, 0.1, "it is better, p = 0.01")
    kept = tmp_path / "kept"
    check_folder(kept)
    outcomes = keep(kept, "moons/1", CHAMPION, wrong=0.3, count=900)
    outcomes |= keep(kept, "moons/2", CHALLENGER, wrong=0.1, count=300)
    truth = tmp_path / "truth.csv"
    truth.write_text("id,truth\n" + "".join(f"{name},{value}\n" for name, value in outcomes.items()))
    arguments = ("ab", "small", "--name", "moons", "--answers", kept, "--outcomes", truth)
    told = place.json(*arguments)
    first, second = told["versions"]
    assert (first["version"], first["role"], first["confirmed"], first["rows"]) == ("moons/1", "champion", 0.2, 900)
    assert (second["version"], second["role"], second["known_outcomes"]) == ("moons/2", "challenger", 300)
    assert first["error"] == pytest.approx(0.3, abs=0.05)
    assert second["mean_confidence"] == pytest.approx(0.75)
    assert told["comparison"]["verdict"] == "better"
    assert told["comparison"]["low"] < -0.2 < told["comparison"]["high"] < 0
    printed = place.run(*arguments).stdout
    assert "When moons/2 was promoted, with version 1 as champion: it is better, p = 0.01." in printed
    assert "On what was answered moons/2 is better than moons/1" in printed
    without = place.run("ab", "small", "--name", "moons").stdout
    assert "moons/2" in without
    assert "p99" not in without
    unknown = place.run(*arguments[:-2]).stdout
    assert "0 outcomes of moons/2 and 0 of moons/1 are known, which is too little" in unknown


def test_what_cannot_be_compared_is_one_line(place: Workplace, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        done = place.run("ab", "small", "--name", "moons", *arguments, code=2)
        assert done.stderr.count("\n") == 1 or "Usage" in done.stderr
        return done.stderr

    assert "found no champion of the model 'moons' (it has no versions)" in refused()
    register(tmp_path, 0.2)
    assert "found no challenger of the model 'moons' (its versions are 1 @champion)" in refused()
    register(tmp_path, 0.1, "it is better")
    assert "--outcomes: found no --answers" in refused("--outcomes", tmp_path / "truth.csv")
    kept = tmp_path / "kept"
    check_folder(kept)
    assert "found no answers in" in refused("--answers", kept)
    keep(kept, "moons/1", CHAMPION, wrong=0.0, count=2)
    assert "truth.csv: found no such file" in refused("--answers", kept, "--outcomes", tmp_path / "truth.csv")
    (tmp_path / "truth.csv").write_text("name,truth\nx,a\n")
    assert "found the columns 'name', 'truth', allowed: 'id' and one more" in refused(
        "--answers", kept, "--outcomes", tmp_path / "truth.csv"
    )
    (answer_files(kept)[0]).write_text('{"id": 1}\n')
    assert "line 1: found" in refused("--answers", kept)
    place.run("ab", "nothing", code=2)


def test_of_numbers_the_squared_error_counts_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, 2**20)
    rows = {f"batch/{number}": {"value": float(number), "low": 0.0, "high": 9.0} for number in range(1, 4)}
    endless = {"nan": {"value": math.nan}, "square": {"value": 1e200}}
    log.note(rows | endless, version="v", role=CHAMPION, seconds=0.01)
    log.close()
    with answer_files(tmp_path)[0].open("a") as file:
        file.write('{"id":"batch/9","mod')
    found = answered(tmp_path, {"batch/1": "1.0", "batch/3": "5", "nan": "1", "square": "1"})["v"]
    assert list(found.losses) == [0.0, 4.0]
    assert found.plain()["rmse"] == pytest.approx(2**0.5)
    with pytest.raises(ExportError, match="--outcomes: found 'many' for the row 'batch/1', allowed: a number"):
        answered(tmp_path, {"batch/1": "many"})


def test_the_oldest_answers_are_deleted(tmp_path: Path) -> None:
    most = 64 * 1024
    log = AnswerLog(tmp_path, most)
    for number in range(4000):
        log.note({str(number): {"label": "a", "confidence": 1.0}}, version="v", role=CHAMPION, seconds=0.0)
        if number % 100 == 0:
            while not log._lines.empty():
                pass
    log.close()
    files = answer_files(tmp_path)
    assert len(files) > 1
    assert sum(path.stat().st_size for path in files) <= 1.3 * most
    kept = [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]
    assert kept == [str(number) for number in range(4000 - len(kept), 4000)]


def test_a_file_that_was_deleted_while_nothing_was_written_is_followed_by_another_one(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, 2**20)
    for name in ("lost", "kept"):
        log.note({name: {"label": "a"}}, version="v", role=CHAMPION, seconds=0.0)
        if name == "lost":
            while not any(path.stat().st_size for path in answer_files(tmp_path)):
                pass
            answer_files(tmp_path)[0].unlink()
    log.close()
    (file,) = answer_files(tmp_path)
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["kept"]


def test_a_full_disk_makes_no_heap_of_empty_files(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        fill(disk)
        log = AnswerLog(disk, 2**20)
        for number in range(200):
            log.note({str(number): {"label": "a"}}, version="v", role=CHAMPION, seconds=0.0)
            while not log._lines.empty():
                pass
        log.close()
        assert len(answer_files(disk)) <= 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServeError, match=r"--answers: found .*file/answers.*, allowed: a folder"):
        check_folder(tmp_path / "file" / "answers")


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_booleans_are_right_however_a_file_writes_them(tmp_path: Path, ending: str) -> None:
    table = pa.table({"id": ["a", "b", "c"], "truth": [True, False, True]})
    path = tmp_path / f"truth{ending}"
    if ending == ".parquet":
        pq.write_table(table, path)
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        path.write_text("id,truth\na,True\nb,FALSE\nc,true\n")
    said = {"at": 0, "model": "m/1", "role": CHAMPION, "seconds": 0.1, "confidence": 0.9}
    labels = {"a": "true", "b": "false", "c": "False"}
    lines = [json.dumps({"id": name, "label": label, **said}) + "\n" for name, label in labels.items()]
    (tmp_path / "answers-1-1.jsonl").write_text("".join(lines))
    assert list(answered(tmp_path, outcomes_in(path))["m/1"].losses) == [0.0, 0.0, 1.0]


def test_outcomes_are_texts_whatever_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    path.write_text('{"id": 7, "label": true}\n{"label": " b ", "id": "x/1"}\n')
    assert outcomes_in(path) == {"7": "true", "x/1": "b"}
    table = tmp_path / "truth.csv"
    table.write_text("id,label\na,1.0\nb,\nc,nan\nd,02\ne,1.5\n")
    assert outcomes_in(table) == {"a": "1", "d": "02", "e": "1.5"}


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([0.0, 1.0] * 50, [0.0, 1.0] * 50, "undecided"),
        ([0.0] * 40, [1.0] * 40, "better"),
        ([1.0] * 40, [0.0] * 40, "worse"),
        ([1.0] * 40, [math.nan] * 40, "undecided"),
    ],
)
def test_verdicts(ours: list[float], theirs: list[float], verdict: str) -> None:
    found: Any = compare_losses(ours, theirs)
    assert found.verdict == verdict
    assert compare_losses(ours[:29], theirs) is None
