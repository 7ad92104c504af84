"""A small part of `benchmarks/attacks_files.py`: hostile files, and mutated models, in processes of the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support import optional
from tests.support.paths import BENCHMARKS


@pytest.mark.large
def test_hostile_files_and_mutated_models_are_taken_or_refused_in_a_line() -> None:
    optional.module("onnx")
    given = ("--doors", "pictures,training,archives,spec,rows", "--mutations", "24", "--json")
    command = [sys.executable, str(BENCHMARKS / "attacks_files.py"), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    # The benchmark measures seconds; a machine with company is not a defect here.
    faults = [one for kind in found.values() for one in kind["faults"] if not one.endswith("s of a processor")]
    assert faults == []
    assert found["hostile"]["files"] >= 30
    assert found["mutated"]["files"] == 24
    assert found["mutated"]["taken"] > 0, "honest parts still answer"


def test_there_are_as_many_files_as_the_documents_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import attacks_files  # type: ignore[import-not-found]

    some = list(attacks_files.attacks())
    assert len({one.format for one in some}) >= 12
    assert len({str(one) for one in some}) == len(some) >= 100
