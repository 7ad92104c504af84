"""`benchmarks/same_model.py` on digits, and a small part of what `benchmarks/fuzz.py` feeds to every door."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import optional
from tests.support.paths import BENCHMARKS


@pytest.mark.medium
@pytest.mark.slow
def test_contestants_search_the_same_trials(tmp_path: Path) -> None:
    optional.module("lightning")
    more = ("--also", "again=same_model_parts.as_function:train", "--data", tmp_path / "nothing")
    given = ("--json", "--seeds", "1", "--only", "function", "lightning", "again", *more)
    command = [sys.executable, str(BENCHMARKS / "same_model.py"), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["data"] == "digits"
    (function,), (lightning,), (again,) = (document["studies"][name] for name in ("function", "lightning", "again"))
    clock = {"usd", "seconds"}
    assert {k: v for k, v in function.items() if k not in clock} == {k: v for k, v in again.items() if k not in clock}
    for one in (function, lightning):
        assert one["trials"] == one["complete"] + one["pruned"] == 16
        assert one["thawed"] > 0
        assert one["archive"] == sorted(one["archive"], key=lambda point: point["error"])
    assert lightning["hypervolume"] == pytest.approx(function["hypervolume"], rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "torchrun"], "--only: found torchrun, allowed: task, function, lightning"),
        (["--also", "other"], "found 'other', allowed: NAME=TASK"),
    ],
)
def test_contestants_that_nobody_knows_are_refused(arguments, words, monkeypatch, capsys) -> None:
    import same_model

    monkeypatch.setattr(sys, "argv", ["same_model.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        same_model.main()
    assert words in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_input_gets_an_answer_or_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "fuzz", raising=False)
    import fuzz  # type: ignore[import-not-found]

    monkeypatch.setattr(fuzz, "MOST_SECONDS", 120.0)  # of a busy machine
    # A store takes a study of real trials to begin with: tests/studies/storage/test_damaged_rows.py.
    doors = [door for door in fuzz.DOORS if door != "stores"]
    before = resource.getrlimit(resource.RLIMIT_AS)
    found = fuzz.fuzz(inputs=4 * len(doors), seed=7, names=doors)
    assert resource.getrlimit(resource.RLIMIT_AS) == before, "tests of the same process start browsers"
    assert found["bad"] == {}, found["examples"][:1]
    assert set(found["inputs"].values()) == {4}


@pytest.mark.large
@pytest.mark.parametrize("command", [
    ["attacks_files.py", "--files", "16"],
    ["attacks_specs.py", "--json", "--kinds", "relation,earlier studies,first trials"],
])  # fmt: skip
def test_hostile_files_and_specs_stay_within_bounds(command: list[str]) -> None:
    name, *given = command
    program = [sys.executable, str(BENCHMARKS / name), *given]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=280, env=environment)
    assert done.returncode in {0, 1}, done.stderr[-3000:]
    assert "ended by" not in done.stdout  # seconds of a processor are for the benchmark
    assert name == "attacks_specs.py" or json.loads(done.stdout)["faults"] == []
