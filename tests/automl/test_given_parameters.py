"""Names and parameters as people type them."""

import pytest

from automl.given_parameters import task_name


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("train.py:learn", "train:learn"),
        ("train:learn", "train:learn"),
        ("digits", "digits"),
        ("study.yaml", "study.yaml"),
        ("elsewhere/train.py:learn", "elsewhere/train.py:learn"),
    ],
)
def test_code_of_this_folder_is_named_as_a_file_or_a_module(given: str, named: str) -> None:
    assert task_name(given) == named
