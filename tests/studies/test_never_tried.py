"""What the reader of a study is told of choices that no trial has tried."""

from __future__ import annotations

import io

from rich.console import Console

from automl.terminal.summary import document_of, print_summary
from reports.page import render
from search_spaces.parameters import Categorical
from search_spaces.space import Space
from studies.records.records import StudyRecord
from studies.results.analysis import never_tried, never_tried_in_words
from tests.studies.test_analysis import study_of, trial

SPACE = Space(
    {
        "kind": Categorical(["a", "b", "<i>"]),
        "bins": Categorical([0, 16]).when(kind="b"),
        "many": Categorical(list(range(20))),
        "deep": Categorical([1, 2]).when(kind="<i>"),
    }
)


def tried(*params: dict[str, str | int]) -> StudyRecord:
    study = study_of(*(trial(number, (0.1, 1.0), params=one) for number, one in enumerate(params)))
    return study_of(*study.trials, spec={**study.spec, "space": SPACE.to_dict()})


def test_choices_without_a_trial_are_named() -> None:
    study = tried({"kind": "b", "bins": 0, "many": 3}, {"kind": "a", "many": 4})
    assert never_tried(study) == {"kind": ["<i>"], "bins": [16], "many": [0, 1, 2, *range(5, 20)]}
    words = "kind '<i>'; bins 16; many 0, 1, 2, 5, 6, 7 and 12 more"
    assert never_tried_in_words(study) == words
    console = Console(width=160, file=io.StringIO())
    print_summary(console, study, report=None)
    assert f"never tried  {words}" in console.file.getvalue()  # type: ignore[attr-defined]
    assert document_of(study, report=None)["never_tried"] == {
        "kind": ["<i>"],
        "bins": [16],
        "many": [0, 1, 2, *range(5, 20)],
    }
    page = render(study)
    assert "No trial has tried kind &#39;&lt;i&gt;&#39;; bins 16" in page


def test_nothing_is_said_where_all_was_tried_or_nothing_yet() -> None:
    kinds = Space({"kind": Categorical(["a", "b"])}).to_dict()
    study = tried({"kind": "a", "many": 1}, {"kind": "b", "many": 1})
    assert never_tried(study_of(*study.trials, spec={**study.spec, "space": kinds})) == {}
    assert never_tried(study_of(spec={**study.spec, "space": kinds})) == {}
    assert never_tried(study_of(*study.trials, spec={})) == {}
    assert never_tried(study_of(*study.trials, spec={"space": {"kind": {"type": "later"}}})) == {}
