"""Reports unusual data in a table, with options that change its treatment, and summarises the columns."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from search_spaces.messages import listed, shown
from trainers.tasks.shared.class_metric_names import METRIC_OF_RARE, rare_share
from trainers.tasks.shared.split_task import Rows
from trainers.tasks.table.cell_formats import READ
from trainers.tasks.table.columns import Encoding, Vector, values_of
from trainers.tasks.table.files import Table, as_text, texts
from trainers.tasks.table.reading import Reading, usual_words

_MOST_NAMES = 4
_MOST_ROWS = 20_000  # most rows for checking that no single column predicts the target
_TOLD, _TOLD_NUMBER, _FEWEST_ERRORS = 0.05, 1e-4, 10
_USUAL, _ODD, _FEW_ROWS = 0.8, 0.05, 10
"""Limits for findings: fraction of the usual class, fraction of odd values, number of rows that are few."""
_COPIES, _MANY_COPIES, _MANY = 0.01, 0.15, 0.5
"""Limits for copies of rows: fractions to report, and fraction of different values below which copies are chance."""
_FAR, _FAR_IN_LOGS, _GAP = 20.0, 5.0, 0.25
"""Limits for odd values: distance from the quartiles in quartile distances, gap as a fraction of the range."""
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"}
_PLACEHOLDER = re.compile(r"-?([1-9])\1+(\.\1*0?)?|-1(\.0)?|-?9+\.9+|-?1e\+?[0-9]+|-?10{3,}(\.0)?|0(\.0)?")
_NO_DATE = re.compile(r".*(9999|0001|1900|1899|1970|2099|2999|1111|1753).*")
_MOST_PLACEHOLDERS = 3  # most values at each end of a column that may mean a missing number


def table_findings(
    raw: Table, table: Table, others: Mapping[str, Table], *,
    reading: Reading, encoding: Encoding, classes: Sequence[str],
) -> tuple[str, ...]:  # fmt: skip
    """Return a line for each fact that a user should know before training, most serious first."""
    target = reading.target
    used = [*(one.name for one in encoding.numbers), *(one.name for one in encoding.categories)]
    numbers = None if classes else values_of(table, target)
    labels = pc.index_in(texts(table.columns[target]), pa.array(classes)).to_numpy() if classes else numbers
    return (
        *_header(raw),
        *_left_out(reading, encoding),
        *_told(table, encoding, target, labels, is_class=bool(classes)),
        *([] if numbers is None else _odd_values(raw, table, target, numbers)),
        *_placeholders(raw, table, encoding),
        *(_rare(table, target, classes) if classes else []),
        *_labels(reading),
        *_words_as_classes(table, reading, classes),
        *_without_target(raw, table, target),
        *_copies(table, others, [*used, target]),
        *_formats(reading, used),
    )


def table_columns(raw: Table, table: Table, reading: Reading, encoding: Encoding) -> list[dict[str, Any]]:
    """Return each column's name, type, example, and numbers of missing and of different cells."""
    numbers = {one.name: "date" if one.is_date else "number" for one in encoding.numbers}
    categories = {one.name: "category" for one in encoding.categories}
    kinds = numbers | categories | dict.fromkeys(encoding.left_out, "left out") | {reading.target: "target"}
    rows = []
    for name, column in table.columns.items():
        cells = raw.columns[name].slice(0, 1000).drop_null()
        is_counted = not pa.types.is_nested(column.type) and not pa.types.is_null(column.type)
        rows.append({
            "column": name, "type": kinds.get(name, "ignored"),
            "example": as_text(cells[0].as_py()) if len(cells) else "", "missing": column.null_count,
            "levels": pc.count_distinct(column).as_py() if is_counted else 0,
        })  # fmt: skip
    return rows


def setting(option: str, value: object) -> str:
    """Return the argument `--set ...` for a task's option, quoted for a shell."""
    text = f"[{', '.join(map(_yaml, value))}]" if isinstance(value, list) else json.dumps(value)
    argument = f"task_options.{option}={text}"
    quoted = argument if re.fullmatch(r"[\w.=\[\],-]*", argument) else "'" + argument.replace("'", "'\\''") + "'"
    return f"--set {quoted}"


def _yaml(word: str) -> str:
    is_plain = re.fullmatch(r"[^\W\d]\w*", word) and word.lower() not in _YAML_WORDS
    return word if is_plain else json.dumps(word, ensure_ascii=False)


def _named(names: Collection[str]) -> str:
    first = list(names)[:_MOST_NAMES]
    return listed(map(shown, first)) + (f" and {len(names) - len(first)} more" if len(names) > len(first) else "")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2g} % ({part} {'row' if part == 1 else 'rows'})"


def _header(raw: Table) -> list[str]:
    if raw.form is None:
        return []
    if not raw.form.header:
        cure = f"{setting('header', True)} takes its cells as names"
        return [f"the first line counts as a row, and columns are {raw.names[0]}, ...: {cure}"]
    if raw.is_header_sure:
        return []
    cure = f"{setting('header', False)} takes them as a row"
    return [f"the first line, {_named(raw.names)}, counts as the names of the columns: {cure}"]


def _left_out(reading: Reading, encoding: Encoding) -> list[str]:
    lines = []
    for why in dict.fromkeys(reading.identifiers.values()):
        names = [name for name, its in reading.identifiers.items() if its == why and name in encoding.left_out]
        if names:
            option = "numeric" if "number" in why else "categorical"
            lines.append(f"{_named(names)} is left out ({why}): {setting(option, names[:_MOST_NAMES])} keeps it")
    return lines


def _told(table: Table, encoding: Encoding, target: str, wanted: Any, *, is_class: bool) -> list[str]:
    """Return a line for each column that alone predicts the target, learned on half of the rows, tested on others."""
    names = [*(one.name for one in encoding.numbers), *(one.name for one in encoding.categories)]
    rows = np.random.default_rng(0).permutation(_first_of_copies(table, [*names, target]))[:_MOST_ROWS]
    wanted, lines = np.asarray(wanted)[rows], []
    values: dict[str, Vector] = {
        one.name: values_of(table, one.name, is_date=one.is_date)[rows] for one in encoding.numbers
    }
    for name in names:
        number = values.get(name)
        if is_class:
            classes = wanted.astype(np.int64)
            codes = _levels(texts(table.columns[name]).take(pa.array(rows))) if number is None else _codes(number)
            error, without = min(_error_of_class(one, classes) for one in (codes, np.minimum(codes, 1)))
        else:
            error, without = (1.0, 1.0) if number is None else _error_of_number(number, wanted)
        one_row = 2.0 / len(rows)  # allows one error, at the border of two classes
        if error <= (max(without * _TOLD, one_row) if is_class else without * _TOLD_NUMBER):
            said = f"error {error:.1%} with it, {without:.1%} without" if is_class else "by interpolation"
            cure = f"if the column is not known when you predict, {setting('ignore', [name])}"
            lines.append(f"{shown(name)} alone predicts {shown(target)} ({said}): {cure}")
    return lines[:_MOST_NAMES]


def _first_of_copies(table: Table, names: Sequence[str]) -> Rows:
    numbered = _comparable([table], list(dict.fromkeys(names)))[0].append_column(
        "\0row", pa.array(np.arange(len(table)))
    )
    first = numbered.group_by(list(dict.fromkeys(names))).aggregate([("\0row", "min")]).column("\0row_min")
    return np.sort(first.to_numpy())


def _codes(values: Vector) -> Rows:
    """Return each number's code: the nearest number in the first half. Missing values have their own code."""
    known = np.unique(values[: len(values) // 2][~np.isnan(values[: len(values) // 2])])
    if len(known) == 0:
        return np.zeros(len(values), dtype=np.int64)
    between = (known[1:] + known[:-1]) / 2
    return np.where(np.isnan(values), 0, np.searchsorted(between, values) + 1)


def _levels(column: Any) -> Rows:
    """Return a code for each level. Missing values have their own code, and rare levels share a code."""
    codes = pc.fill_null(pc.dictionary_encode(column).indices, -1).to_numpy(zero_copy_only=False) + 2
    codes = np.where(codes == 1, 0, codes).astype(np.int64)
    return np.where((np.bincount(codes)[codes] < _FEW_ROWS) & (codes > 0), 1, codes)


def _error_of_class(codes: Rows, wanted: Rows) -> tuple[float, float]:
    """Return errors on the second half: of the most frequent class per code, and overall."""
    half = len(wanted) // 2
    counts = np.zeros((codes.max() + 1, wanted.max() + 1))
    np.add.at(counts, (codes[:half], wanted[:half]), 1)
    usual = counts.sum(0).argmax()
    answers = np.where(counts.sum(1) > 0, counts.argmax(1), usual)
    errors = wanted[half:] != usual
    enough = errors.sum() >= _FEWEST_ERRORS
    return (float((answers[codes[half:]] != wanted[half:]).mean()) if enough else 1.0), float(errors.mean())


def _error_of_number(values: Vector, wanted: Vector) -> tuple[float, float]:
    """Return the squared error on the second half of interpolation from the first, and the variance."""
    known = ~np.isnan(values)
    values, wanted, half = values[known], wanted[known], int(known.sum()) // 2
    wanted = np.clip(wanted, *np.quantile(wanted, [0.01, 0.99])) if len(wanted) else wanted
    if known.mean() < 1 - _TOLD or half < _FEW_ROWS:
        return 1.0, 1.0
    order = np.argsort(values[:half], kind="stable")
    inside = half + np.flatnonzero(np.abs(values[half:] - np.median(values)) < np.ptp(values) / 4)
    rest = wanted[inside] - np.interp(values[inside], values[:half][order], wanted[:half][order])
    return (float(np.square(rest).mean()) if len(inside) else 1.0), float(wanted[half:].var())


def _odd_values(raw: Table, table: Table, name: str, numbers: Vector) -> list[str]:
    """Return a line about target values far from all others, which may mean a missing number."""
    low, high = np.quantile(numbers, [0.25, 0.75])
    inner = float(high - low) or float(numbers.std())
    is_far = (numbers < low - _FAR * inner) | (numbers > high + _FAR * inner)
    if (numbers >= 0).all() and numbers.any():  # sizes and prices have long tails
        logs = np.log(numbers[numbers > 0])
        least, most = np.quantile(logs, [0.25, 0.75])
        is_far[numbers > 0] &= np.abs(logs - (least + most) / 2) > _FAR_IN_LOGS * ((most - least) or 1.0)
    far = numbers[is_far]
    odd = {float(one) for one in np.unique(far)} if 0 < len(far) <= _ODD * len(numbers) else set()
    odd |= {one for one in _lonely_ends(numbers) if _PLACEHOLDER.fullmatch(f"{one:g}")}
    if not odd:
        return []
    rows = np.isin(numbers, list(odd))
    rest, values = numbers[~rows], _cells(raw, table, name, rows)
    cure = f"{setting('missing', values)} leaves these rows out"
    where = f"{_share(int(rows.sum()), len(numbers))} of {shown(name)} are {listed(values)}"
    return [f"{where}, far from all others ({rest.min():g} to {rest.max():g}): {cure}"]


def _lonely_ends(numbers: Vector) -> list[float]:
    """Return repeated values with a large gap to all values above or below. Ignores NaN."""
    found, known = [], numbers[~np.isnan(numbers)]
    for sign in (1, -1):
        levels, counts = np.unique(sign * known, return_counts=True)
        for place in range(min(_MOST_PLACEHOLDERS, len(levels) - _FEW_ROWS)):
            low, high = np.quantile(sign * known[sign * known > levels[place]], [0.01, 0.99])
            if levels[place + 1] - levels[place] > _GAP * (high - low) > 0:
                found += [
                    float(sign * one)
                    for one, count in zip(levels, counts, strict=True)
                    if one <= levels[place] and count > 1
                ]
                break
    return found


def _cells(raw: Table, table: Table, name: str, rows: Any) -> list[str]:
    cells = texts(raw.columns[name])
    cells = cells if table.rows is None else cells.take(pa.array(table.rows))
    return [word for word, _ in Counter(cells.filter(pa.array(rows)).to_pylist()).most_common(_MOST_NAMES)]


def _placeholders(raw: Table, table: Table, encoding: Encoding) -> list[str]:
    """Return lines about numbers and dates that seem to mean a missing value, such as -999."""
    found: list[tuple[str, int, list[str]]] = []
    for one in encoding.numbers:
        numbers = values_of(table, one.name, is_date=one.is_date)
        for end in _lonely_ends(numbers):
            words = _cells(raw, table, one.name, numbers == end)
            seems = all(map(_NO_DATE.fullmatch, words)) if one.is_date else end and _PLACEHOLDER.fullmatch(f"{end:g}")
            if seems:
                found.append((one.name, int((numbers == end).sum()), words))
    cure = setting("missing", list(dict.fromkeys(word for *_, words in found for word in words)))
    return [
        f"{_share(count, len(table))} of {shown(name)} are {listed(words)}, far from all others: "
        f"if it means missing, {cure}"
        for name, count, words in found[:_MOST_NAMES]
    ]


def _rare(table: Table, target: str, classes: Sequence[str]) -> list[str]:
    counts = Counter(texts(table.columns[target]).to_pylist())
    usual = max(classes, key=lambda one: counts[one])
    least = rare_share(len(classes)) * len(table)
    rare = [one for one in classes if counts[one] < least]
    if not rare:
        return []
    which = listed([f"{shown(one)} {_share(counts[one], len(table))}" for one in rare[:_MOST_NAMES]])
    said = f"rare classes of {shown(target)}: {which}"
    if counts[usual] < _USUAL * len(table):
        return [said]
    error = f"{100 * (1 - counts[usual] / len(table)):.2g} %"
    what = f"always answering {shown(usual)} has an error of only {error}, which a model has to beat to be of use"
    cure = f"--set 'objectives=[{METRIC_OF_RARE}, cost_usd]' judges how well models find the rare class"
    return [f"{said}; {what}. {cure}"]


def _labels(reading: Reading) -> list[str]:
    merged = [group for group in reading.spelt if group[0] in reading.labels]
    kept = [group for group in reading.spelt if group[0] not in reading.labels]
    lines = []
    for groups, what, cure in (
        (merged, "count as one class", f"{setting('merge_spellings', False)} keeps them apart"),
        (kept, "differ only in case and blanks", f"{setting('merge_spellings', True)} makes them one class"),
    ):
        if groups:
            said = "; ".join(" = ".join(map(shown, group[:_MOST_NAMES])) for group in groups[:_MOST_NAMES])
            lines.append(f"labels of {shown(reading.target)} {what}: {said}. {cure}")
    return lines


def _words_as_classes(table: Table, reading: Reading, classes: Sequence[str]) -> list[str]:
    words = usual_words(table, reading.target) if classes else {}
    if not words:
        return []
    which = listed([f"{shown(word)} ({count} rows)" for word, count in words.items()])
    cure = f"if it means missing, {setting('missing', list(words))} leaves these rows out"
    return [f"{which} is a class of {shown(reading.target)}: {cure}"]


def _without_target(raw: Table, table: Table, target: str) -> list[str]:
    gone = len(raw) - len(table)
    return [f"{_share(gone, len(raw))} without a value in {shown(target)} are left out"] if gone else []


def _copies(table: Table, others: Mapping[str, Table], names: Sequence[str]) -> list[str]:
    """Return lines about equal rows, unless all columns have few values, with which rows are equal by chance."""
    (own,) = _comparable([table], names)
    distinct = _distinct(own)
    levels = [float(pc.count_distinct(column).as_py()) for column in own.columns[:-1]]
    copies, log_combinations = len(table) - distinct, float(np.log(np.maximum(levels, 1)).sum())
    if max(levels) < _MANY * distinct or log_combinations < np.log(2 * len(table)):
        return []
    lines = []
    if copies > max(1, (_COPIES if log_combinations > np.log(50 * len(table)) else _MANY_COPIES) * len(table)):
        what = "so that the validation part is known from training"
        lines.append(f"{_share(copies, len(table))} are copies of other rows, {what}: remove them from the file")
    for name, other in others.items():
        both = _comparable([table, other], names)
        shared = sum(map(_distinct, both)) - _distinct(pa.concat_tables(both))
        if shared:
            cure = f"remove them, or {setting(f'{name}_share', 0.2)} without a {name} file"
            lines.append(f"{shared} different rows of {other.path.name} are training rows, too: {cure}")
    return lines


def _comparable(tables: Sequence[Table], names: Sequence[str]) -> list[Any]:
    found: list[dict[str, Any]] = [{} for _ in tables]
    for name in (name for name in names if all(name in table.columns for table in tables)):
        columns = [table.columns[name] for table in tables]
        is_alike = len({str(column.type) for column in columns}) == 1
        for known, column in zip(found, columns, strict=True):
            known[name] = column if is_alike else texts(column)
    return [pa.table(one) for one in found]


def _distinct(table: Any) -> int:
    return int(table.group_by(table.column_names).aggregate([]).num_rows)


def _formats(reading: Reading, used: Sequence[str]) -> list[str]:
    formats = {name: form for name, form in reading.formats.items() if name in (*used, reading.target)}
    lines = []
    for name, form in formats.items():
        if form["kind"] in READ and form["missing"]:
            words = listed([shown(word) for word in form["missing"][:_MOST_NAMES]])
            lines.append(
                f"{words} in {shown(name)} counts as missing among {form['kind']}s: "
                f"{setting('categorical', [name])} reads a category"
            )
        if "doubt" in form and form["kind"] == "date":
            what = f"has the {'day' if form['day_first'] else 'month'} first"
            lines.append(
                f"{form['doubt']} in {shown(name)} {what} by assumption: {setting('day_first', not form['day_first'])}"
            )
        elif "doubt" in form:
            what = "fractions" if form["decimal"] in form["doubt"] else "thousands"
            cure = setting("decimal", "." if form["decimal"] == "," else ",")
            lines.append(f"{form['doubt']} in {shown(name)} is read with {what} by assumption: {cure}")
    commas = [name for name, form in formats.items() if form.get("decimal") == ","]
    units = [f"{shown(name)} in {form['unit']}" for name, form in formats.items() if form.get("unit")]
    codes = [name for name, form in formats.items() if form["kind"] == "code"]
    read = [*([f"{_named(commas)} with a decimal comma"] if commas else []), *units[:_MOST_NAMES]]
    if read:
        written = [name for name, form in formats.items() if form.get("decimal") == "," or form.get("unit")]
        names = [name for name in written if name != reading.target][:_MOST_NAMES]
        cure = f": {setting('categorical', names)} reads categories" if names else ""
        lines.append(f"numbers: {', '.join(read)}{cure}")
    if codes:
        what = "are codes with leading zeros, not numbers"
        lines.append(f"{_named(codes)} {what}: {setting('numeric', codes[:_MOST_NAMES])} reads numbers")
    return lines
