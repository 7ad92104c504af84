"""Small bar charts of the page: dollars by purpose, and the importance of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from reports.phrases import plural, usd
from reports.plotting import COLOURS
from studies.records.records import StudyRecord
from studies.results import analysis

KIND_WORDS = {
    "start": "forming process groups, loading data, thawing",
    "train": "epochs that count",
    "lost": "work that a fault destroyed",
    "idle": "devices without a trial, their start included",
    "confirm": "trainings of automl confirm",
    "test": "measuring the chosen models at the end",
}
OVERHEAD_COLOUR = "#6d7fb3"
LEAST_SHOWN = 0.005  # smallest share of a parameter that has a bar of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar of a small bar chart; `share` is its length in percent of the longest, `detail` explains the name."""

    name: str
    text: str
    share: float
    colour: str
    note: str = ""
    detail: str = ""


def money_bars(study: StudyRecord) -> tuple[list[Bar], list[Bar]]:
    """Return the dollars by kind of charge, and by the state of the charged trials."""
    kinds = {name: value for name, value in analysis.money_by_kind(study).items() if value}
    outcomes = analysis.money_by_outcome(study)
    order = [s for s in ("complete", "pruned", "failed", "paused", "running") if s in outcomes]
    outcomes = {name: outcomes[name] for name in [*order, *(n for n in outcomes if n not in order)]}
    colours: Mapping[str, str] = {str(state): colour for state, colour in COLOURS.items()}
    by_kind = _bars(kinds, {"train": COLOURS["complete"], "lost": COLOURS["failed"]}, KIND_WORDS)
    states = [t.state for t in study.started]
    words = {state: plural(states.count(state), "trial") for state in order if state in states} | KIND_WORDS
    return by_kind, _bars(outcomes, colours, words)


def _bars(amounts: Mapping[str, float], colours: Mapping[str, str], words: Mapping[str, str]) -> list[Bar]:
    longest, total = max(amounts.values(), default=0.0), sum(amounts.values())
    return [
        Bar(
            name=name,
            detail=words.get(name, ""),
            text=usd(value),
            share=100 * value / longest if longest > 0 else 0.0,
            colour=colours.get(name, OVERHEAD_COLOUR),
            note=f"{100 * value / total:.0f} %" if total > 0 else "",
        )
        for name, value in amounts.items()
    ]


def importance_bars_of(shares: Mapping[str, float]) -> list[Bar]:
    """Return the largest parameter importances for one objective, largest first; those near 0 share the last bar."""
    told = [name for name, share in shares.items() if share >= LEAST_SHOWN][:12]
    bars = [
        Bar(
            name=name,
            text=f"{100 * shares[name]:.0f} %",
            share=100 * shares[name] / max(shares.values()),
            colour=COLOURS["complete"],
        )
        for name in told
    ]
    if others := len(shares) - len(told):
        most = max(share for name, share in shares.items() if name not in told)
        text = f"at most {100 * most:.0f} %" if most >= LEAST_SHOWN else "less than 1 % each"
        bars.append(Bar(name=plural(others, "other parameter"), text=text, share=0.0, colour=COLOURS["pruned"]))
    return bars
