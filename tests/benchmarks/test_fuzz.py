"""A small part of what `python benchmarks/fuzz.py` feeds to every door."""

from __future__ import annotations

import resource
import sys

import pytest

from tests.support.paths import BENCHMARKS


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_input_gets_an_answer_or_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "fuzz", raising=False)
    import fuzz  # type: ignore[import-not-found]

    # A store takes a study of real trials to begin with: tests/studies/storage/test_damaged_rows.py.
    doors = [door for door in fuzz.DOORS if door != "stores"]
    before = resource.getrlimit(resource.RLIMIT_AS)
    found = fuzz.fuzz(inputs=12 * len(doors), seed=7, names=doors)
    assert resource.getrlimit(resource.RLIMIT_AS) == before, "tests of the same process start browsers"
    assert found["bad"] == {}, found["examples"][:1]
    assert set(found["inputs"].values()) == {12}
