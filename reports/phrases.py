"""Formats dollars, durations and metrics, and the states of studies and trials."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from search_spaces.messages import significant
from studies.records.records import TRIAL_STATES, StudyRecord, StudyState, TrialRecord

NOTHING = "–"  # noqa: RUF001 - an en dash is how a table says "none"
CENT = 0.01
_LEAST_USD = 1e-7  # dollars below which powers of ten are printed; a few zeros are easier to read
SHARES = ("error", "accuracy")  # endings of the names of metrics that are shares
_OF_DISTANCES = re.compile(r"(?i)(?<![a-z])(squared?|absolute|abs|r?mse|mae)(?![a-z])")
"""Words in the names of errors that are not shares, but in the target's unit or its square."""


def number(value: object, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, without a fraction if it is whole; other values as text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "not finite"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 10**digits <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return significant(value, digits) if 1e-4 <= abs(value) < 1e6 else _scientific(value, max(digits - 1, 2))


def _scientific(value: float, digits: int) -> str:
    """Return scientific notation without trailing zeros, such as `1.23e-5` or `1e-6`."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def usd(value: float) -> str:
    """Format dollars: from one dollar with cents, else with up to three significant digits."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "$0"
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size >= 1:
        return f"{sign}${size:,.2f}"
    if size < _LEAST_USD:
        return f"{sign}${_scientific(size, 3)}"
    whole, cents = f"{size:.{2 - math.floor(math.log10(size))}f}".split(".")
    return f"{sign}${whole}.{cents.rstrip('0').ljust(2, '0')}"


def limits_in_words(*, usd_limit: float | None, hours: float | None, trials: int | None) -> str:
    """Name a budget's limits: `$1.00 or 2 h, whichever comes first`."""
    given = [] if usd_limit is None else [usd(usd_limit)]
    given += [] if hours is None else [duration(3600.0 * hours)]
    given += [] if trials is None else [plural(trials, "trial")]
    return " or ".join(given) + (", whichever comes first" if len(given) > 1 else "")


def exact_usd(value: float) -> str:
    """Format dollars with six significant digits, for comparisons."""
    return f"${value:.6g}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: `36 ms`, `41 s`, `3 min 20 s`, `3 d 4 h`."""
    if not math.isfinite(seconds):
        return NOTHING
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            major, minor = whole // size, whole % size // below
            return f"{major} {unit} {minor} {small}" if minor else f"{major} {unit}"
    return f"{whole} s"


def metric(name: str, value: object) -> str:
    """Format a metric's value with the unit of its name."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return number(value)
    for ending, in_words in _UNITS.items():
        if name.endswith(ending):
            return in_words(float(value))
    return percent(float(value)) if is_share(name, value) else number(value)


def value_in_words(name: str, value: float | None, seconds: float | None = None) -> str:
    """Format a metric's value with three digits and its unit; empty for None.

    Adds the root of a mean squared error, and `seconds` to a cost below a cent.
    """
    if value is None:
        return ""
    text = metric(name, value) if has_unit(name, value) else number(value, 3)
    if (root := root_of(name, value)) is not None:
        return f"{text} (RMSE {number(root, 3)})"
    is_small = name == "cost_usd" and 0 < value < CENT
    return f"{text} ({duration(seconds)})" if is_small and seconds is not None and math.isfinite(seconds) else text


def deviation(name: str, value: float, mean: float) -> str:
    """Format the standard deviation of a metric in the unit of its mean."""
    if not name.endswith(SHARES) or not math.isfinite(value):
        return metric(name, value) if has_unit(name, value) else number(value, 3)
    return percent(value) if is_share(name, mean) else number(value)


def has_unit(name: str, value: float) -> bool:
    """Return whether the name of a metric implies a unit."""
    return name.endswith(tuple(_UNITS)) or is_share(name, value)


def root_of(name: str, value: float) -> float | None:
    """Return the root of a mean squared error, or None for other metrics."""
    is_squared = name.lower().split("_")[-1] == "mse"
    return math.sqrt(value) if is_squared and math.isfinite(value) and value >= 0 else None


def is_share(name: str, value: float) -> bool:
    """Return whether a metric is a fraction, by its name and value."""
    return 0 <= value <= 1 and name.endswith(SHARES) and _OF_DISTANCES.search(name) is None


def interval(name: str, median: float, low: float, high: float) -> tuple[float, float]:
    """Return a forecast's interval. Intervals of fractions are limited to 0 and 1."""
    return (max(low, 0.0), min(high, 1.0)) if is_share(name, median) else (low, high)


def percent(share: float) -> str:
    """Format a fraction in percent: with two decimals, below one percent with three significant digits."""
    hundred = 100 * share
    digits = 2 if hundred >= 1 or hundred == 0 else 2 - math.floor(math.log10(hundred))
    text = f"{hundred:.{min(digits, 8)}f}"
    return f"{text.rstrip('0').rstrip('.') or '0'} %"


def count(value: float) -> str:
    """Format a large count in millions, such as `1.24 M`, and a smaller count in full."""
    if abs(value) < 1e6:
        return number(value)
    millions = value / 1e6
    return f"{millions:,.0f} M" if abs(millions) >= 100 else f"{millions:.3g} M"


def size_in_bytes(value: float) -> str:
    """Format an amount of memory in GB, MB, kB or B."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            shown = value / size
            return f"{shown:,.0f} {unit}" if abs(shown) >= 100 else f"{shown:.3g} {unit}"
    return f"{number(value)} B"


_UNITS: Mapping[str, Callable[[float], str]] = {
    "_usd": usd,
    "_seconds": duration,
    "_ms": lambda value: f"{number(value, 3)} ms",
    "_bytes": size_in_bytes,
    "model_parameters": count,
}
"""Formats by the ending of a metric's name."""


def plural(count: int, word: str) -> str:
    """Return a count and its noun: `1 trial`, `2 trials`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def listed(items: list[str]) -> str:
    """Join items as in `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def mapping(value: object) -> Mapping[str, object]:
    """Return the value if it is a mapping, else an empty mapping: stored specs are not validated."""
    return value if isinstance(value, Mapping) else {}


def budget_amount(name: str, value: float) -> str:
    """Format an amount of `usd`, `hours` or `trials`."""
    return usd(value) if name == "usd" else duration(value * 3600) if name == "hours" else number(value)


_VERBS: Mapping[str, str] = {"running": "is", "drained": "is", "closed": "is", "failed": "has"}
_TRIALS: Mapping[str, str] = {
    "queued": "waits for a slot; `automl cancel {study} {trial}` takes it out of the queue",
    "running": "it trains",
}
"""Reasons of trials whose row has no reason, by state."""
PAUSED_AT_THE_END = "paused at epoch {epochs} when the study closed; more budget reopens it"
"""Reason of a trial whose row has `closed` as its reason."""


def state_text(name: str, state: StudyState | str, *, driven: bool, why: str = "") -> str:
    """Return a study's state and reason: `closed: there was nothing left to try`."""
    if state == "running" and not driven:
        return f"running, but its controller has died; `automl resume {shlex.quote(name)}` continues it"
    return f"{state}: {why}" if why else state


def study_sentence(study: StudyRecord, subject: str = "") -> str:
    """Return a clause: `moons is closed: there was nothing left to try`."""
    text = state_text(study.name, study.state, driven=study.driven, why=study.why_ended)
    return f"{subject or study.name} {_VERBS[study.state]} {text}"


def trial_reason(trial: TrialRecord, study: str = "STUDY", baseline: str | None = None) -> str:
    """Return why a trial is in its state, with the name of a `baseline` in front."""
    reason = trial.reason or _TRIALS.get(trial.state, "").format(study=shlex.quote(study), trial=trial.name)
    if reason == "closed":
        reason = PAUSED_AT_THE_END.format(epochs=len(trial.epochs))
    return f"baseline: {baseline}; {reason}" if baseline else reason


def counted(states: Iterable[str]) -> str:
    """Count the trials in each state: `1 running, 2 complete`."""
    numbers = Counter(states)
    return ", ".join(f"{numbers[state]} {state}" for state in TRIAL_STATES if numbers[state])
