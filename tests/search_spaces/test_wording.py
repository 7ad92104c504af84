"""Messages for people."""

from __future__ import annotations

import pytest

from search_spaces.messages import problem_and_cure


@pytest.mark.parametrize(
    ("message", "problem", "cure"),
    [
        ("it is gone. Name another, or none", "it is gone", "Name another, or none"),
        ("a: found 'b', allowed: c; did you mean 'c'?", "a: found 'b', allowed: c", "Did you mean 'c'?"),
        (
            "'My. File' (No. It broke) is the model's. `automl x` is",
            "'My. File' (No. It broke) is the model's",
            "`automl x` is",
        ),
        ("found 1.5, allowed: letters and . _ , -", "found 1.5, allowed: letters and . _ , -", ""),
    ],
)
def test_the_cure_of_a_message_begins_after_its_first_sentence(message: str, problem: str, cure: str) -> None:
    assert problem_and_cure(message) == (problem, cure)
