"""A guess at `task.metrics` for a program that prints its metrics in its own words."""

import re
from collections.abc import Iterator, Sequence

_WORD = r"[A-Za-z][\w/@-]*"
_PAIR = re.compile(
    rf"(?P<name>{_WORD}(?: {_WORD})?)(?P<between>\s*[:=]\s*|\s+)[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?(?![\w.])", re.ASCII
)
_MOST_CHARACTERS = 500  # of a line: the search takes time by the square of a word's length
_COUNTERS = {"epoch": "epoch", "epochs": "epoch", "step": "step", "steps": "step", "iter": "step", "iteration": "step"}


def likely_pattern(lines: Sequence[str]) -> str | None:
    """Return a regular expression for the last line with metrics, and if possible with an epoch; None without one.

    It names `val loss 0.31` `val_loss`, the number after `Epoch` `epoch`, and that after `iter` `step`.
    """
    lines = [line[:_MOST_CHARACTERS] for line in lines]
    readings = [pairs for line in reversed(lines) if _has_metric(pairs := dict(_pairs(line)))]
    for pairs in sorted(readings, key=lambda one: not one.keys() & set(_COUNTERS.values())):
        pattern = ".*?".join(pairs.values())
        if any(re.search(pattern, line) for line in lines):
            return pattern
    return None


def _has_metric(pairs: dict[str, str]) -> bool:
    return bool(pairs.keys() - set(_COUNTERS.values()))


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    """Yield each name in a line with the regular expression that reads its number."""
    for pair in _PAIR.finditer(line):
        text, last = pair["name"], pair["name"].split()[-1]
        counter = _COUNTERS.get(last.lower())
        name = counter or re.sub(r"\W+", "_", text).strip("_").lower()
        between = r"\s*[:=]\s*" if pair["between"].strip() else r"\s+"
        words = last if counter else text
        yield name, f"{words}{between}(?P<{name}>{'[0-9]+' if counter else '[-+.0-9eE]+'})"
