"""The models of a study as an inline SVG picture, which needs no script: trials as dots, the kept models as a line.

Colours are those of front_picture.css, in the variables of the page's own style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from reports.wording import metric, plural
from studies import pareto
from studies.analysis import ArchivePoint
from studies.baselines import Baseline, baselines
from studies.records import NANO, Objective, StudyRecord, TrialRecord

STYLE = Path(__file__).with_name("front_picture.css")
"""Style sheet of the picture, which whoever shows it adds to the page's own."""
WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 112, 16, 16, 58
MOST_POINTS = 500
"""Trials that are drawn, the latest ones."""
MONEY = "paid_usd"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """One direction of the picture.

    Attributes:
        name: Name of the metric.
        low: Smallest value.
        high: Largest value.
        is_log: Whether it is logarithmic.
    """

    name: str
    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float:
        """Share of the axis at which a value lies, from 0 to 1."""
        low, high, here = (self._scaled(one) / 2 for one in (self.low, self.high, value))  # differences stay finite
        return 0.5 if high <= low else (here - low) / (high - low)

    def ticks(self) -> list[float]:
        """Values at both ends and in the middle."""
        if self.high <= self.low:
            return [self.low]
        middle = math.sqrt(self.low) * math.sqrt(self.high) if self.is_log else self.low / 2 + self.high / 2
        return [self.low, middle, self.high]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def front_picture(
    study: StudyRecord, archive: Sequence[ArchivePoint], *, names: tuple[str, str] | None = None
) -> Markup:
    """Return the picture as markup; empty before the first measured epoch.

    Args:
        study: Study as committed, with texts that are safe to show.
        archive: Its kept models.
        names: Metrics across and up; None takes the second and the first objective, or of a study with one the money
            paid for a trial and the objective.
    """
    across, up = names or _names(study.objectives)
    trials = [(trial.number or 0, _values(trial, across, up)) for trial in study.started[-MOST_POINTS:]]
    seen = [(number, point) for number, point in trials if point is not None]
    kept = sorted(point for one in archive if (point := _archived(study, one, across, up)) is not None)
    points = [point for _, point in seen] + kept
    if not points:
        return Markup()
    is_level = up == study.objectives[0].metric  # baselines are known by what they reach, and not by what they cost
    lines = _drawn_baselines(study, up, [y for _, y in points]) if is_level else []
    heights = [y for _, y in points] + [one.values[up] for one in lines]
    axes = _axis(across, (x for x, _ in points)), _axis(up, heights)
    latest = f"the latest {MOST_POINTS} of " if len(study.started) > MOST_POINTS else ""
    counted = plural(len(study.started) if latest else len(seen), "trial")
    title = f"{latest}{counted} and {plural(len(kept), 'kept model')}: {across} across, {up} up"
    parts = [
        *_frame(*axes),
        *(_level(one, axes[1]) for one in lines),
        _line(_best(study, kept, across, up), axes, rises_first=_is_maximized(study, across)),
        *_dots(seen, axes),
        *(_diamond(point, axes) for point in kept),
    ]
    box = f"0 0 {WIDTH} {HEIGHT}"
    return Markup('<svg class="front" viewBox="{}" role="img" aria-label="{}">{}</svg>').format(
        box, title, Markup("").join(parts)
    )


def _names(objectives: Sequence[Objective]) -> tuple[str, str]:
    names = [one.metric for one in objectives]
    return (names[1], names[0]) if len(names) > 1 else (MONEY, names[0])


def _values(trial: TrialRecord, across: str, up: str) -> tuple[float, float] | None:
    if not trial.epochs:
        return None
    known = {**trial.epochs[-1].metrics, MONEY: trial.paid_nano_usd / NANO}
    return _point(known.get(across), known.get(up))


def _archived(study: StudyRecord, one: ArchivePoint, across: str, up: str) -> tuple[float, float] | None:
    if across != MONEY:
        return _point(one.values.get(across), one.values.get(up))
    trial = next((trial for trial in study.started if trial.number == one.trial), None)
    return None if trial is None else _point(trial.paid_nano_usd / NANO, one.values.get(up))


def _point(x: float | None, y: float | None) -> tuple[float, float] | None:
    return None if x is None or y is None or not (math.isfinite(x) and math.isfinite(y)) else (float(x), float(y))


def _axis(name: str, values: Iterable[float]) -> _Axis:
    given = list(values)
    low, high = min(given), max(given)
    return _Axis(name=name, low=low, high=high, is_log=low > 0 and high / low >= 20)


def _at(point: tuple[float, float], axes: tuple[_Axis, _Axis]) -> tuple[float, float]:
    x = LEFT + axes[0].place(point[0]) * (WIDTH - LEFT - RIGHT)
    y = HEIGHT - BOTTOM - axes[1].place(point[1]) * (HEIGHT - TOP - BOTTOM)
    return round(x, 1), round(y, 1)


def _frame(across: _Axis, up: _Axis) -> list[Markup]:
    """Lines and texts of both axes."""
    axes, bottom = (across, up), HEIGHT - BOTTOM
    parts = [Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(LEFT, TOP, bottom, WIDTH - RIGHT)]
    anchors = ("start", "middle", "end")
    for place, tick in enumerate(across.ticks()):
        x, _ = _at((tick, up.low), axes)
        text = Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>')
        parts.append(text.format(x, bottom + 20, anchors[place], _shown(across, tick)))
    for tick in up.ticks():
        _, y = _at((across.low, tick), axes)
        text = Markup('<text x="{}" y="{}" text-anchor="end">{}</text>')
        parts.append(text.format(LEFT - 6, y + 4, _shown(up, tick)))
    middle = (LEFT + WIDTH - RIGHT) // 2
    label = Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>')
    parts.append(label.format(middle, HEIGHT - 8, across.name))
    turned = Markup('<text class="label" transform="translate(16 {}) rotate(-90)" text-anchor="middle">{}</text>')
    parts.append(turned.format((TOP + bottom) // 2, up.name))
    return parts


def _shown(axis: _Axis, value: float) -> str:
    """A value at an axis, with few digits since there is little room."""
    return metric(axis.name, float(f"{value:.3g}"))


def _is_maximized(study: StudyRecord, name: str) -> bool:
    return any(one.metric == name and one.direction == "maximize" for one in study.objectives)


def _best(study: StudyRecord, kept: Sequence[tuple[float, float]], across: str, up: str) -> list[tuple[float, float]]:
    """The kept models that no other one beats in both directions: with more objectives not all are so."""
    signs = [-1.0 if _is_maximized(study, name) else 1.0 for name in (across, up)]
    return [kept[i] for i in pareto.archive([(signs[0] * x, signs[1] * y) for x, y in kept])]


def _line(best: Sequence[tuple[float, float]], axes: tuple[_Axis, _Axis], *, rises_first: bool) -> Markup:
    """The best models, from left to right, as stairs: between two of them the worse one across is all that is had."""
    places = [_at(point, axes) for point in best]
    if len(places) < 2 or axes[0].name == MONEY:
        return Markup()
    steps = "".join(f"V{y}H{x}" if rises_first else f"H{x}V{y}" for x, y in places[1:])
    return Markup('<path class="stairs" d="M{} {}{}"/>').format(*places[0], steps)


def _drawn_baselines(study: StudyRecord, up: str, heights: Sequence[float]) -> list[Baseline]:
    """Baselines but those that are worse than all trials: these would lie together at one side of the picture."""
    objective = next(one for one in study.objectives if one.metric == up)
    worst = max(objective.signed(value) for value in heights)
    known = [(one, one.values.get(up, math.nan)) for one in baselines(study)]
    return [one for one, value in known if math.isfinite(value) and objective.signed(value) <= worst]


def _level(baseline: Baseline, up: _Axis) -> Markup:
    """A baseline as a line from side to side, with its name above it, or below it at the upper end."""
    y = round(HEIGHT - BOTTOM - up.place(baseline.values[up.name]) * (HEIGHT - TOP - BOTTOM), 1)
    right, words = WIDTH - RIGHT, y - 5 if y > TOP + 20 else y + 14
    line = Markup('<path class="level" d="M{} {}H{}"/>').format(LEFT, y, right)
    return line + Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(right, words, baseline.called)


def _dots(seen: Sequence[tuple[int, tuple[float, float]]], axes: tuple[_Axis, _Axis]) -> list[Markup]:
    dots = []
    for number, point in seen:
        x, y = _at(point, axes)
        told = escape(f"trial {number}: {axes[1].name} {metric(axes[1].name, point[1])}, ")
        told += escape(f"{axes[0].name} {metric(axes[0].name, point[0])}")
        dots.append(Markup('<circle class="dot" cx="{}" cy="{}" r="4"><title>{}</title></circle>').format(x, y, told))
    return dots


def _diamond(point: tuple[float, float], axes: tuple[_Axis, _Axis]) -> Markup:
    return Markup('<path class="kept" d="M{} {}m0 -6l6 6l-6 6l-6 -6z"/>').format(*_at(point, axes))
