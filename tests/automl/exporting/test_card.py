"""The model card: metadata that any YAML reader takes, whatever the licence is called."""

import ast
import math
import re
from typing import Any

import pytest
import yaml

from automl.exporting.card import card_of
from automl.standalone.answers import ArrayAnswers, NumberAnswers

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


@pytest.mark.parametrize("weights", [(1, 1), (10, 10), (3,), (2, 1)])
def test_the_interval_of_an_ensemble_does_not_hang_on_how_its_weights_are_written(weights: tuple[int, ...]) -> None:
    """Of two answers 6 apart the variance is 18 whatever equal weights they have; of one there is none."""
    answers = NumberAnswers({"mean": 0.0, "deviation": 1.0, "mse": 4.0}, weights)
    found = answers.answer([value for value, count in zip((0.0, 6.0), weights, strict=False) for _ in range(count)])
    variance = 4.0 if len(weights) == 1 else 4.0 + 18.0
    assert found["high"] - found["value"] == pytest.approx(1.959964 * math.sqrt(variance))


def test_names_from_data_stay_text_in_the_card() -> None:
    hostile = (
        'a", x: __import__("os").system("id"), "\n```\n<img src=x onerror=y>\x1b]0;pwn\x07|`![](http://elsewhere/x.png)'
    )
    rows = {"kind": "table", "numbers": [{"name": hostile}], "categories": []}
    told: dict[str, Any] = {"rows": rows, "params": {hostile: hostile}, "metrics": {}, "study": hostile}
    card = card_of(MANIFEST | told | {"licence": hostile})
    code = card.split("```python\n")[1].split("\n```")[0]
    (call,) = [one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Dict)]
    assert [key.value for key in call.keys] == [hostile]
    outside = card.replace(code, "").split("---\n", 2)[2]
    assert not any(character in card for character in "\x1b\x07")
    assert "\n```\n<img" not in outside
    assert "<img" not in re.sub(r"(`+).*?(?<!`)\1(?!`)", "", outside).replace("\\<img", "")
    assert not re.search(r"(?<!\\)\]\(", re.sub(r"(`+).*?(?<!`)\1(?!`)", "", outside))
