"""Reads numbers and dates as people write them, such as `1.234,50 €`."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

_WORDS = """
-|--|---|?|??|.|..|...|*|/|#n/a|#na|#n/v|#nv|#value!|#wert!|#div/0!|#ref!|#bezug!|#name?|#num!|#zahl!|#null!|#error!|n/a|n.a.|n.a|na|
n/d|n.d.|nd|s/d|n/v|n.v.|nan|-nan|nat|<na>|<null>|(null)|null|nil|none|(none)|\\n|k.a.|k. a.|k.a|ka|keine angabe|
keine angaben|keine|unbekannt|fehlt|entfällt|leer|nicht verfügbar|nicht vorhanden|unknown|unk|unkn|missing|(missing)|
not available|not applicable|not known|not reported|not recorded|not specified|not stated|not measured|unavailable|
undefined|unspecified|no data|nodata|no answer|no value|no response|refused|blank|(blank)|(empty)|empty|void|tbd|tba|
desconocido|sin dato|sin datos|inconnu|inconnue|non disponible|non renseigné|non renseignée|sconosciuto|onbekend|brak
"""
MISSING_WORDS = frozenset(word.strip() for word in _WORDS.replace("\n", "").split("|"))
"""Words for a missing value in a column of numbers or dates, in lower case."""

_SIGNS = str.maketrans(
    {**dict.fromkeys("\u2212\u2012\u2013\u2014\ufe63\uff0d", "-"), **dict.fromkeys("\u2019\u2018\u02bc\u00b4`", "'")}
)
_MONEY = r"(?:[A-Z]{1,3})?[$€£¥₹₽₩₺₫₪₱฿₴¢]|[A-Z]{3}(?=[ \d.-])|Rs\.?|kr\.?|S?Fr\.|zł"
_CODES = (
    "EUR USD GBP CHF JPY CNY RMB INR SEK NOK DKK PLN CZK HUF RUB TRY BRL CAD AUD NZD MXN ZAR KRW SGD HKD THB AED SAR"
)
_PARTS = re.compile(
    rf"([+-]?)\s*({_MONEY})?\s*([+-]?)\s*"
    r"([0-9](?:[0-9.,']|\s(?=[0-9]{2,3}))*|[.,][0-9]+)((?:[eE][+-]?[0-9]+)?)\s*"
    r"((?:[^\d\s.,'()+#:;<>=/-][^\d():;<>=+]{0,15}(?:(?<=m)[23])?)?)"
)
_BARE = re.compile(r"(-?)([0-9][0-9.,]*)")
_NO_CENTS, _BRACKETED = re.compile(r"(?<=[0-9])[.,]-{1,2}(?=$|\s)"), re.compile(rf"({_MONEY})\s*\((.+)\)")
_SCALES = {
    **dict.fromkeys(("k", "tsd", "thousand", "tausend"), 1e3),
    **dict.fromkeys(("mio", "mn", "million", "millions", "millionen"), 1e6),
    **dict.fromkeys(("mrd", "bn", "billion", "billions", "milliarden"), 1e9),
    "M": 1e6,
    "B": 1e9,
    "K": 1e3,
}
_BODIES = {
    decimal: re.compile(
        rf"(?:[0-9]+|[1-9][0-9]{{0,2}}(?:(?:{other}[0-9]{{3}})+|(?:'[0-9]{{3}})+|(?:\s[0-9]{{3}})+)"
        rf"|[1-9][0-9]?(?:{other}[0-9]{{2}})+{other}[0-9]{{3}})(?:{mark}[0-9]*)?|{mark}[0-9]+"
    )
    for decimal, mark, other in ((".", r"\.", ","), (",", ",", r"\."))
}
_MONTH_STARTS = (
    "jan ene gen|feb fév fev|mar mär mrz|apr avr abr|may mai mag|jun juin giu|jul juil lug|aug aoû ago|sep set|"
    "oct okt ott out|nov|dec dez déc dic"
)
_MONTHS = {start: number for number, all_of in enumerate(_MONTH_STARTS.split("|"), start=1) for start in all_of.split()}
_TIME = (
    r"(?:(?:[T ,]|, )\s*(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:[.,](?P<part>[0-9]{1,9}))?)?"
    r"\s*(?P<half>[AaPp])?(?(half)\.?[Mm]\.?)(?:\s*(?:Uhr|h))?\s*(?P<zone>Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_YEAR = r"(?P<year>[0-9]{4}|[0-9]{2})"
_NAME = r"(?P<name>[^\W\d_]{3,10})"
_DAYS = tuple(
    re.compile(rf"(?:[^\W\d_]{{2,10}}\.?,?\s+)?{day}{_TIME}")
    for day in (
        r"(?P<year>[0-9]{4})(?P<mark>[-/.])(?P<month>[0-9]{1,2})(?P=mark)(?P<day>[0-9]{1,2})",
        r"(?P<first>[0-9]{1,2})(?P<mark>[-/.])\s?(?P<other>[0-9]{1,2})(?P=mark)\s?(?P<year>[0-9]{4}|[0-9]{2})",
        rf"(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th|\.|er)?[ -]*(?:of |de )?{_NAME}\.?,?[ -]*(?:de )?{_YEAR}",
        rf"{_NAME}\.?[ -]+(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?,?[ -]+(?P<year>[0-9]{{4}})",
        rf"(?P<year>[0-9]{{4}})[ -]{_NAME}[ -](?P<day>[0-9]{{1,2}})",
        rf"{_NAME}\.?[ -]+(?P<year>[0-9]{{4}})",
        rf"{_NAME}[-'](?P<year>[0-9]{{2}})",
        r"(?P<year>[0-9]{4})[-/](?P<month>[0-9]{1,2})",
        r"(?P<month>[0-9]{1,2})[/.](?P<year>[0-9]{4})",
    )
)
_CLOCK = re.compile(_TIME.removesuffix("?"))
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - zones are subtracted by hand, since Python 3.10 reads fewer of them


def parts(text: str) -> tuple[str, str, float] | None:
    """Split a text into digits with separators, unit ("" without a unit) and factor. None if it is no number."""
    if bare := _BARE.fullmatch(text):  # most cells, in a third of the time
        return bare[2], "", -1.0 if bare[1] else 1.0
    text = _BRACKETED.sub(r"(\1\2)", _NO_CENTS.sub("", text.translate(_SIGNS).strip()))
    in_brackets = text[:1] == "(" and text[-1:] == ")"
    text = text[1:-1].strip() if in_brackets else text
    trailing = text[-1:] == "-" and text[-2:-1].isdigit()
    found = _PARTS.fullmatch(text[:-1] if trailing else text)
    if found is None:
        return None
    before, money, after, body, power, unit = found.groups()
    if money and money.isalpha() and len(money) == 3 and money not in _CODES.split():
        return None
    signs = f"{before}{after}{'-' * (in_brackets + trailing)}"
    if len(signs) > 1:
        return None
    first, _, rest = unit.strip().partition(" ")
    factor = next((_SCALES[one] for one in (first.rstrip("."), first.rstrip(".").lower()) if one in _SCALES), None)
    if factor is None and len(first) > 1 and first[0] in "kKMB" and not first[1].isalnum():  # 5K€
        factor, rest = _SCALES[first[0]], first[1:] + rest
    unit = unit.strip() if factor is None else rest
    whole = f"{money or ''}{' ' if money and unit else ''}{unit}".lower().rstrip(".")
    return body + power, whole, -(factor or 1.0) if signs == "-" else factor or 1.0


def value_of(body: str, decimal: str) -> float | None:
    """Return the value of digits such as 1.234,5, or None if they do not fit the decimal mark."""
    digits, _, power = body.lower().partition("e")
    if _BODIES[decimal].fullmatch(digits) is None:
        return None
    plain = "".join(digits.split()).replace("'", "").replace("," if decimal == "." else ".", "").replace(",", ".")
    value = float(f"{plain}e{power}" if power else plain)
    return None if value == float("inf") else value


def milliseconds_of(text: str, *, is_day_first: bool) -> int | None:
    """Return a date or time of day as milliseconds since 1970 in UTC, or None. `is_day_first`: 3/5/24 is in May."""
    for pattern in _DAYS:
        found = pattern.fullmatch(text)
        if found is not None:
            break
    else:
        found = _CLOCK.fullmatch(f" {text}")
    if found is None:
        return None
    cells = found.groupdict()
    month, day = cells.get("month"), cells.get("day") or 1
    if cells.get("name"):
        name = cells["name"].lower()
        month = _MONTHS.get(name[:4]) or _MONTHS.get(name[:3])
    elif cells.get("first"):
        day, month = (cells["first"], cells["other"]) if is_day_first else (cells["other"], cells["first"])
    year = int(cells.get("year") or 1970)
    year += 0 if year > 99 else 2000 if year < 69 else 1900
    hour, half = int(cells["hour"] or 0), (cells["half"] or "").lower()
    hour = hour % 12 + 12 * (half == "p") if half else hour
    try:
        moment = datetime(year, int(month or (0 if "name" in cells else 1)), int(day), hour % 24 if hour < 25 else hour)  # noqa: DTZ001
        moment += timedelta(days=hour == 24, minutes=_below(60, cells["minute"]), seconds=_below(61, cells["second"]))
    except ValueError:
        return None
    zone = cells["zone"] or ""
    shift = int(f"{zone[0]}1") * (int(zone[1:3]) * 60 + int(zone[-2:])) if zone[:1] in {"+", "-"} and zone else 0
    part = int(f"{cells['part'] or '':0<3}"[:3])
    return round((moment - _EPOCH).total_seconds()) * 1000 - shift * 60_000 + part


def _below(limit: int, digits: str | None) -> int:
    number = int(digits or 0)
    if number >= limit:
        raise ValueError
    return number


def reader(form: Mapping[str, Any]) -> Callable[[object], float | None]:
    """Return a function that converts a cell to a number, a date to milliseconds, a missing value to None.

    `form` has `kind` (number or date), `decimal` and `unit`, or `day_first`, and `missing`, more words for missing
    values. The function raises ValueError for other texts.
    """
    words = MISSING_WORDS.union(word.translate(_SIGNS).lower() for word in form["missing"])

    def read(cell: object) -> float | None:
        text = str(cell).strip()
        if text.translate(_SIGNS).lower() in words:
            return None
        value: float | None
        if form["kind"] == "date":
            value = milliseconds_of(text, is_day_first=form["day_first"])
        elif isinstance(cell, str):
            found = parts(text)
            value = None if found is None or found[1] not in {"", form["unit"]} else value_of(found[0], form["decimal"])
            value = value if value is None or found is None else value * found[2]
        else:
            value = float(text)
        if value is None or not abs(value) < float("inf"):
            raise ValueError(text)
        return value

    return read


def is_missing(text: str) -> bool:
    """Return whether a text is a word for a missing value, such as NA."""
    return text.translate(_SIGNS).lower() in MISSING_WORDS
