"""Messages for people."""

import pytest

from search_spaces.messages import nearest, problem_and_cure, without_password


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


def test_among_very_many_long_names_none_is_sought() -> None:
    many = [f"{number:05}{'ab' * 90}" for number in range(1000)]
    assert nearest("ab" * 50, many) is None
    assert nearest("widht", [f"width{'x' * number}" for number in range(40)]) == "width"


@pytest.mark.parametrize(("text", "shown"), [
    ("a://u:p@h b://u@h c:// @", "a://***@h b://***@h c:// @"),
    ("a://u:p/@:@h/x@y z", "a://***@y z"),
    ("a://h/b://u:p@h", "a://h/b://***@h"),
    ("://:" * 3, "://:" * 3),
    ("@://:", "@://:"),
])  # fmt: skip
def test_users_and_passwords_of_addresses_are_hidden_up_to_the_last_at_sign_of_a_word(text: str, shown: str) -> None:
    assert without_password(text) == shown
