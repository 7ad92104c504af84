"""Draws a timeline of devices: charges as bars, faults as marks. Leaves out times without devices."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.phrases import duration, listed, plural
from reports.plotting import COLOURS, Figure, Trace, axis, escape, figure, short, wrapped
from search_spaces.messages import significant
from search_spaces.untrusted_text import last_line
from studies.records.records import CHARGE_KINDS, AttemptRecord, ChargeKind, StudyRecord, TrialRecord

KIND_COLOURS: dict[ChargeKind, str] = {
    "start": "#c08a1e",
    "train": COLOURS["complete"],
    "lost": COLOURS["failed"],
    "idle": "#c9d1ce",
    "confirm": "#6d7fb3",
    "test": "#9a86b8",
}
_WORDS: dict[ChargeKind, str] = {
    "start": "started trials",
    "train": "trained epochs that count",
    "lost": "was lost to faults",
    "idle": "was idle",
    "confirm": "confirmed models",
    "test": "measured models on the test part",
}
FAULTS = frozenset({"lost", "timeout", "unreadable", "storage", "failed", "unstarted", "interrupted"})
"""Outcomes that are marked."""
MOST_BARS = 1500
"""Most bars in the figure. Beyond, time is divided, and each part shows its longest activity."""
MOST_FAULTS = 200
PARTS = 400  # number of parts of the time if there are too many bars; fewer with several devices
_TINY = 1 / 2000  # share of the whole time below which a gap is invisible


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    """A device's activity, in seconds of `_Clock`."""

    slot: int
    kind: ChargeKind
    trial: int | None
    start: float
    end: float
    text: str = ""


class _Clock:
    """Converts times to charged seconds since the first charge."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        for begin, end in sorted(spans):
            if self._ends and begin <= self._ends[-1] + 1.0:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)
        self._before = [0.0]
        for begin, end in zip(self._begins, self._ends, strict=True):
            self._before.append(self._before[-1] + end - begin)

    @property
    def seconds(self) -> float:
        return self._before[-1]

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Positions of uncharged periods on the axis, and their seconds."""
        pairs = zip(self._begins[1:], self._ends, self._before[1:], strict=False)
        return [(at, begin - end) for begin, end, at in pairs]

    def at(self, moment: float) -> float:
        """Convert a time to seconds on the axis. An uncharged time becomes the end of the charge before it."""
        place = bisect_right(self._begins, moment) - 1
        return 0.0 if place < 0 else self._before[place] + min(moment, self._ends[place]) - self._begins[place]


def timeline(study: StudyRecord) -> Figure | None:
    """Draw a row of bars for each device; None if charges do not name devices."""
    charges = [(one, one.charged_at.timestamp()) for one in study.charges if one.slot_numbers and one.seconds > 0]
    clock = _Clock((end - one.seconds, end) for one, end in charges)
    if not clock.seconds:
        return None
    by_slot: dict[int, list[_Bar]] = defaultdict(list)
    for one, end in charges:
        start, stop = clock.at(end - one.seconds), clock.at(end)
        for slot in one.slot_numbers:
            by_slot[slot].append(_Bar(slot=slot, kind=one.kind, trial=one.trial, start=start, end=stop))
    rows = {slot: _joined(sorted(bars, key=lambda bar: bar.start), clock.seconds) for slot, bars in by_slot.items()}
    if sum(map(len, rows.values())) > MOST_BARS:
        parts = max(PARTS // len(rows), 40)
        rows = {slot: _divided(bars, clock.seconds / parts) for slot, bars in rows.items()}
    whole = clock.seconds
    unit, word = (1.0, "seconds") if whole < 180 else (60.0, "minutes") if whole < 10_800 else (3600.0, "hours")
    slots = sorted(rows)
    data = [_trace(kind, [bar for slot in slots for bar in rows[slot] if bar.kind == kind], unit)
            for kind in CHARGE_KINDS]  # fmt: skip
    data += _faults(study, clock, unit)
    places = [slot for slot in slots if len(slots) <= 40 or slot % (len(slots) // 20) == 0]
    names: dict[str, Any] = {"tickvals": places, "ticktext": [f"device {slot}" for slot in places]}
    more = {"bargap": 0.25, "barmode": "overlay", "uniformtext": {"mode": "hide", "minsize": 9}}
    x_axis = axis(f"{word} with devices{', gaps left out' if clock.gaps else ''}", range=[0, clock.seconds / unit])
    return figure(
        [trace for trace in data if trace["x"]],
        height=130 + min(30 * len(slots), 620),
        shapes=[_gap_line(at / unit) for at, _ in clock.gaps],
        annotations=[_gap_text(at / unit, seconds) for at, seconds in clock.gaps[:12]],
        xaxis=x_axis,
        yaxis=axis("", autorange="reversed", zeroline=False, showgrid=False, **names),
        **more,
    )


def timeline_line(study: StudyRecord) -> str:
    """Describe the use of the devices' time, and the number of faults."""
    seconds: dict[ChargeKind, float] = defaultdict(float)
    for one in study.charges:
        seconds[one.kind] += one.slots * one.seconds
    total = sum(seconds.values())
    if not total:
        return ""
    percent = {kind: significant(100 * seconds[kind] / total, 2) for kind in CHARGE_KINDS if seconds[kind]}
    shares = [f"{of_all} % {_WORDS[kind]}" for kind, of_all in percent.items()]
    faults = len(_faulty(study))
    told = f"{'was' if faults == 1 else 'were'} {plural(faults, 'fault')}" if faults else "was no fault"
    return f"Of {duration(total)} of all devices together {listed(shares)}; there {told}."


def _joined(bars: Sequence[_Bar], whole: float) -> list[_Bar]:
    """Drop invisible gaps of a device, and join equal bars around them."""
    kept: list[_Bar] = []
    for bar in bars:
        if bar.kind == "idle" and bar.end - bar.start < whole * _TINY:
            continue
        last = kept[-1] if kept else None
        goes_on = last is not None and (last.kind, last.trial) == (bar.kind, bar.trial)
        if last is not None and goes_on and bar.start - last.end < whole * _TINY:
            kept[-1] = replace(last, end=bar.end)
        else:
            kept.append(bar)
    return [replace(bar, text=_text(bar)) for bar in kept]


def _divided(bars: Sequence[_Bar], length: float) -> list[_Bar]:
    """Divide a device's time into equal parts, each with its longest activity."""
    seconds: dict[int, dict[ChargeKind, float]] = defaultdict(lambda: defaultdict(float))
    trials: dict[int, set[int]] = defaultdict(set)
    for bar in bars:
        for part in range(int(bar.start / length), int(bar.end / length) + 1):
            inside = min(bar.end, (part + 1) * length) - max(bar.start, part * length)
            if inside > 0:
                seconds[part][bar.kind] += inside
                trials[part] |= set() if bar.trial is None else {bar.trial}
    found = []
    for part, each in sorted(seconds.items()):
        kind = max(each, key=lambda one: each[one])
        shares = [f"{name} {100 * spent / sum(each.values()):.0f} %" for name, spent in each.items()]
        text = "<br>".join([plural(len(trials[part]), "trial"), *shares])
        start = part * length
        found.append(_Bar(slot=bars[0].slot, kind=kind, trial=None, start=start, end=start + length, text=text))
    return found


def _text(bar: _Bar) -> str:
    who = "no trial" if bar.trial is None else f"trial {bar.trial}"
    return f"{who}: {bar.kind}<br>{duration(bar.end - bar.start)}, from {duration(bar.start)} on"


def _trace(kind: ChargeKind, bars: Sequence[_Bar], unit: float) -> Trace:
    labels = [str(bar.trial) if kind == "train" and bar.trial is not None else "" for bar in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [bar.slot for bar in bars],
        "base": [short(bar.start / unit) for bar in bars],
        "x": [short((bar.end - bar.start) / unit) for bar in bars],
        "text": labels,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "#ffffff"},
        "hovertext": [bar.text for bar in bars],
        "hovertemplate": "device %{y}<br>%{hovertext}<extra></extra>",
        "marker": {"color": KIND_COLOURS[kind], "line": {"width": 0}},
    }


def _faulty(study: StudyRecord) -> list[tuple[TrialRecord, AttemptRecord]]:
    return [(trial, one) for trial in study.started for one in trial.attempts if one.outcome in FAULTS]


def _faults(study: StudyRecord, clock: _Clock, unit: float) -> list[Trace]:
    found = [
        (slot, clock.at(one.ended_at.timestamp()) / unit, _why(trial, one))
        for trial, one in _faulty(study)[:MOST_FAULTS]
        if one.ended_at is not None
        for slot in one.slots
    ]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "fault",
            "x": [short(at) for _, at, _ in found],
            "y": [slot for slot, _, _ in found],
            "text": [text for *_, text in found],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "x", "size": 10, "color": COLOURS["failed"], "line": {"width": 1, "color": "#ffffff"}},
        }
    ]


def _why(trial: TrialRecord, attempt: AttemptRecord) -> str:
    is_last = attempt is next((one for one in reversed(trial.attempts) if one.outcome in FAULTS), None)
    message = last_line(trial.error) if is_last and trial.error else ""
    outcome = trial.failure if attempt.outcome == "failed" and trial.failure else attempt.outcome
    head = f"trial {trial.number}, attempt {attempt.attempt}: {escape(str(outcome).replace('_', ' '))}"
    return f"{head}<br>{wrapped(message)}" if message else head


def _gap_line(at: float) -> dict[str, object]:
    line = {"color": COLOURS["queued"], "width": 1, "dash": "dot"}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _gap_text(at: float, seconds: float) -> dict[str, object]:
    text = f"{duration(seconds)} later"
    place = {"x": at, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {**place, "text": text, "showarrow": False, "font": {"size": 10}}
