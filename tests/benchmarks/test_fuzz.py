"""A small part of what `python benchmarks/fuzz.py` feeds to every door."""

from __future__ import annotations

import sys

import pytest

from tests.support.paths import BENCHMARKS


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_input_gets_an_answer_or_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "fuzz", raising=False)
    import fuzz  # type: ignore[import-not-found]

    found = fuzz.fuzz(inputs=12 * len(fuzz.DOORS), seed=7)
    assert found["bad"] == {}, found["examples"][:1]
    assert set(found["inputs"].values()) == {12}
