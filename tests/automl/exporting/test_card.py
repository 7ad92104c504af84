"""The model card: metadata that any YAML reader takes, whatever the licence is called."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from automl.exporting.card import card_of
from automl.standalone.answers import ArrayAnswers

MANIFEST: dict[str, Any] = {
    "study": "s", "trial": 0, "epoch": 1, "task": "digits", "params": {}, "metrics": {}, "data": {},
    "environment": {}, "rows": None, "answers": {"kind": "array"}, "programs": ["model.pt2"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("licence", "told"),
    [(None, "other"), ("Apache-2.0", "apache-2.0"), ("ours: 'all' # of it", "ours: 'all' # of it"), ("no", "no")],
)
def test_the_licence_is_a_text(licence: str | None, told: str) -> None:
    head = card_of(MANIFEST | {"licence": licence}).split("---\n")[1]
    assert yaml.safe_load(head) == {"license": told, "library_name": "pytorch", "tags": ["digits"]}


def test_outputs_of_several_models_are_means() -> None:
    answers = ArrayAnswers({})
    assert answers.answer([[[1.0, 2.0]], [[3.0, 6.0]]]) == {"outputs": [[2.0, 4.0]]}
    assert answers.answer([[1, 2], [3, 4]]) == {"outputs": [1, 2]}
    assert answers.answer([[1.5]]) == {"outputs": [1.5]}
