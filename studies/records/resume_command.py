"""The command that continues a study with another budget, as a shell takes it."""

import shlex
from collections.abc import Collection, Mapping
from typing import Any

FINISH = 0.1
"""Default share of a budget that is kept for leaders that were cut short."""


def resume_command(study: str, budget: Mapping[str, Any], changed: Collection[str]) -> str:
    """Return `automl resume STUDY --set 'budget=2 min'`, or one `--set` for each of the limits `changed`."""
    given = {name: value for name, value in budget.items() if value is not None and name != "finish"}
    is_short = given.keys() <= {"hours", "usd", "trials"} and budget.get("finish", FINISH) == FINISH
    if is_short and "finish" not in changed:  # the short form of a budget holds no other limit
        sets = ["budget=" + ", ".join(_in_words(name, value) for name, value in given.items())]
    else:
        sets = [f"budget.{name}={'null' if budget[name] is None else _plain(budget[name])}" for name in changed]
    return " ".join(["automl resume", shlex.quote(study), *(f"--set {shlex.quote(one)}" for one in sets)])


def _in_words(name: str, limit: float) -> str:
    if name != "hours":
        return f"${_plain(limit)}" if name == "usd" else f"{_plain(limit)} trials"
    seconds = round(3600 * limit, 3)
    return f"{_plain(seconds)} s" if seconds % 60 else f"{_plain(seconds / 60)} min"


def _plain(number: float) -> str:
    """Return a number without an exponent, which the short form of a budget does not read."""
    return f"{number:.9f}".rstrip("0").rstrip(".")
