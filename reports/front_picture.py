"""Draws the trade-off figure as inline SVG, which needs no script."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reports.phrases import number, percent, usd
from reports.plotting import Figure, sampled

STYLE = Path(__file__).with_name("front_picture.css")
"""Style sheet of the picture, for pages that show it."""
WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 112, 16, 16, 58
MOST_POINTS = 500  # most points of a group, an even sample: the page contains each with its text
MOST_TICKS = 4
MOST_SPANS = 3  # largest distance of a drawn baseline from the points, as a multiple of their range
LINES_OF_TEXT = 3  # lines of a point's text: its name and two objectives
_MARKS = {
    "diamond": '<path class="kept" fill="{2}" d="M{0} {1}m0 -6l6 6l-6 6l-6 -6z">{3}</path>',
    "star": '<path class="taken" fill="{2}" d="M{0} {1}m0 -9l3 6h7l-6 5l2 7l-6 -4l-6 4l2 -7l-6 -5h7z">{3}</path>',
    "triangle-up": '<path fill="{2}" d="M{0} {1}m0 -7l6 11h-12z">{3}</path>',
    "circle": '<circle class="dot" cx="{0}" cy="{1}" r="4" fill="{2}" fill-opacity="0.75">{3}</circle>',
    "open": '<circle class="open" cx="{0}" cy="{1}" r="5" stroke="{2}">{3}</circle>',
}
"""Marks by plotly's symbol. Other symbols are open circles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """An axis from the least to the largest drawn value."""

    layout: Mapping[str, Any]
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        is_log = self.layout.get("type") == "log"
        low, high, here = ((math.log(v) if is_log else v) / 2 for v in (self.low, self.high, value))  # stay finite
        share = 0.5 if high <= low else (here - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the ticks of the plotly figure that fit, else both ends and the middle."""
        own = zip(self.layout.get("tickvals", ()), self.layout.get("ticktext", ()), strict=True)
        known = [(at, text) for at, text in own if self.low <= at <= self.high]
        if len(known) > 1:
            return list(sampled(known, MOST_TICKS))
        values = dict.fromkeys((self.low, self.low / 2 + self.high / 2, self.high))
        return [(value, self._text(float(f"{value:.3g}"))) for value in values]

    def _text(self, value: float) -> str:
        if "tickprefix" in self.layout:
            return usd(value)
        return percent(value) if "tickformat" in self.layout else number(value)


def front_picture(plain: Figure) -> Markup:
    """Return the first plane of a `trade_off` figure as SVG; empty without points."""
    data: Any = plain["data"]
    layout: Any = plain["layout"]
    traces = [one for one in data if one.get("xaxis", "x") == "x" and one.get("visible") != "legendonly"]
    places = [place for trace in traces for _, place in _points(trace)]
    if not places:
        return Markup()
    xs, ys, levels = [x for x, _ in places], [y for _, y in places], list[Mapping[str, Any]]()
    for letter, values in (("x", xs), ("y", ys)):
        most = MOST_SPANS * (max(values) / 2 - min(values) / 2) * 2
        near = [one for one in layout.get("shapes", ()) if one[f"{letter}ref"] == letter]
        near = [one for one in near if min(values) - most <= one[f"{letter}0"] <= max(values) + most]
        values += [one[f"{letter}0"] for one in near]
        levels += near
    across = _Axis(layout=layout["xaxis"], low=min(xs), high=max(xs), start=LEFT, end=WIDTH - RIGHT)
    up = _Axis(layout=layout["yaxis"], low=min(ys), high=max(ys), start=HEIGHT - BOTTOM, end=TOP)
    parts = [*_frame(across, up), *(_level(one, across, up) for one in levels)]
    for trace in traces:
        parts += _drawn(trace, across, up)
    title = f"{_title(across)} across, {_title(up)} up"
    box = f"0 0 {WIDTH} {HEIGHT}"
    return Markup('<svg class="front" viewBox="{}" role="img" aria-label="{}">{}</svg>').format(
        box, title, Markup("").join(parts)
    )


def _points(trace: Mapping[str, Any]) -> list[tuple[int, tuple[float, float]]]:
    every = enumerate(zip(trace["x"], trace["y"], strict=True))
    return [(place, (x, y)) for place, (x, y) in every if x is not None and y is not None]


def _title(axis: _Axis) -> Markup:
    return Markup(axis.layout["title"]["text"])  # noqa: S704 - figures escape what they show


def _frame(across: _Axis, up: _Axis) -> Iterator[Markup]:
    bottom = HEIGHT - BOTTOM
    yield Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(LEFT, TOP, bottom, WIDTH - RIGHT)
    text = Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>')
    for tick, told in across.ticks():
        x = across.at(tick)
        anchor = "start" if x < LEFT + 30 else "end" if x > WIDTH - RIGHT - 30 else "middle"
        yield text.format(x, bottom + 20, anchor, told)
    for tick, told in up.ticks():
        yield text.format(LEFT - 6, up.at(tick) + 4, "end", told)
    label = Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>')
    yield label.format((LEFT + WIDTH - RIGHT) // 2, HEIGHT - 8, _title(across))
    turned = Markup('<text class="label" transform="translate(16 {}) rotate(-90)" text-anchor="middle">{}</text>')
    yield turned.format((TOP + bottom) // 2, _title(up))


def _level(shape: Mapping[str, Any], across: _Axis, up: _Axis) -> Markup:
    name = Markup(shape["name"])  # noqa: S704 - figures escape what they show
    if shape["xref"] == "x":
        x = across.at(shape["x0"])
        line = Markup('<path class="level" d="M{} {}V{}"/>').format(x, TOP, HEIGHT - BOTTOM)
        place = Markup('<text transform="translate({} {}) rotate(90)">{}</text>')
        return line + place.format(x + 5 if x < WIDTH - RIGHT - 20 else x - 14, TOP + 4, name)
    y = up.at(shape["y0"])
    line = Markup('<path class="level" d="M{} {}H{}"/>').format(LEFT, y, WIDTH - RIGHT)
    place = Markup('<text x="{}" y="{}" text-anchor="end">{}</text>')
    return line + place.format(WIDTH - RIGHT, y - 5 if y > TOP + 20 else y + 14, name)


def _drawn(trace: Mapping[str, Any], across: _Axis, up: _Axis) -> Iterator[Markup]:
    marker, points = trace.get("marker", {}), _points(trace)
    if "lines" in trace["mode"] and len(points) > 1:
        shape, colour = trace["line"].get("shape", "hv"), trace["line"]["color"]
        (x, y), *steps = [(across.at(x), up.at(y)) for _, (x, y) in points]
        path = "".join(f"V{y}H{x}" if shape == "vh" else f"H{x}V{y}" for x, y in steps)
        yield Markup('<path class="stairs" stroke="{}" d="M{} {}{}"/>').format(colour, x, y, path)
    texts, mark = trace.get("text") or (), _MARKS.get(marker.get("symbol", "circle"), _MARKS["open"])
    for place, (x, y) in sampled(points, MOST_POINTS):
        told = _title_of(texts[place]) if place < len(texts) else ""
        yield Markup(mark).format(across.at(x), up.at(y), marker["color"], told)  # noqa: S704 - our own text


def _title_of(text: str) -> Markup:
    lines = re.sub("</?b>", "", text).split("<br>")[:LINES_OF_TEXT]
    return Markup("<title>{}</title>").format(Markup("\n".join(lines)))  # noqa: S704 - figures escape what they show
