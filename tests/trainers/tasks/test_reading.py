"""Tables as users have them: what each way of writing means, and what is said of unusual data."""

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from automl.predicting.row_files import rows_of as rows_in
from automl.standalone.model import rows_of
from tests.support.task_files import write
from trainers.protocol import TaskError
from trainers.tasks.tabular import Tabular

ROWS = 120
_DRAW = random.Random(5)
X = [_DRAW.gauss(0, 1) for _ in range(ROWS)]
NOISE = [_DRAW.gauss(0, 1) for _ in range(ROWS)]
ORDER = _DRAW.sample(range(ROWS), ROWS)
LABELS = ["yes" if x + z > 0 else "no" for x, z in zip(X, NOISE, strict=True)]


def table(folder: Path, head: str, *columns: Sequence[object], delimiter: str = ",") -> str:
    """A CSV file of columns."""
    rows = [head.split(delimiter)] if head else []
    return write(folder / "t.csv", [*rows, *map(list, zip(*columns, strict=True))], delimiter)


def read(path: str, target: str | int = "last", **options: Any) -> Tabular:
    return Tabular(path, target, reading=2, **options)


def findings(task: Tabular) -> str:
    return "\n".join(task.data_check()["findings"])


def values(task: Tabular, name: str) -> list[float | None]:
    """A column's numbers, or days, of all rows of its file."""
    number = next(one for one in task.encoding.numbers if one.name == name)
    place = task.encoding.numbers.index(number)
    row = task._parts["train"][0][:, place] * number.deviation + number.mean
    return list(row)


NUMBERS: dict[str, tuple[Callable[[float], str], float]] = {
    "decimal comma": (lambda x: f"{x:.3f}".replace(".", ","), 1.0),
    "German thousands": (lambda x: f"{x * 5000:,.2f}".translate(str.maketrans(",.", ".,")), 5000.0),
    "Swiss thousands": (lambda x: f"{x * 5000:,.2f}".replace(",", "\u2019"), 5000.0),
    "French thousands and euros": (lambda x: f"{x * 5000:,.2f} €".replace(",", "\u202f").replace(".", ","), 5000.0),
    "dollars": (lambda x: f"${x * 5000:,.2f}".replace("$-", "-$"), 5000.0),
    "brackets": (lambda x: f"({-x:.3f})" if x < 0 else f"{x:.3f}", 1.0),
    "a typographic minus": (lambda x: f"{x:.3f}".replace("-", "\u2212"), 1.0),
    "a minus behind": (lambda x: f"{abs(x):.3f}{'-' if x < 0 else ''}", 1.0),
    "percent": (lambda x: f"{x:.3f} %", 1.0),
    "a unit": (lambda x: f"{x:.3f}km/h", 1.0),
    "thousands as K": (lambda x: f"{x:.2f}K" if abs(x) > 1 else f"{x * 1000:.0f}", 1000.0),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_are_read_as_people_write_them_and_exported_models_agree(form: str, tmp_path: Path) -> None:
    written, scale = NUMBERS[form]
    cells = [written(x) for x in X]
    cells[7], cells[8] = "unknown", "k.A."
    task = read(table(tmp_path, "v;z;y", cells, NOISE, LABELS, delimiter=";"), validation_share=0.001)
    number = next(one for one in task.encoding.numbers if one.name == "v")
    known = [x * scale for index, x in enumerate(X) if index not in {7, 8}]
    assert number.median == pytest.approx(np.median(known), abs=0.03 * scale)
    assert number.deviation == pytest.approx(np.std(known), rel=0.05)
    assert number.marks
    assert_exported_model_agrees(task, tmp_path / "t.csv")


def assert_exported_model_agrees(task: Tabular, path: Path) -> None:
    form = json.loads(json.dumps(task.preprocessing()))
    rows, encoder = [row for _, row in rows_in(path, form)], rows_of(form)
    exported = np.array([list(encoder.encode(row, 0).numbers) for row in rows], dtype=np.float32)
    assert np.array_equal(exported, task.encode(path).numpy())
    assert np.array_equal(exported, task.encode(rows).numpy())


DATES = [
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%y", "%d %b %Y", "%B %d, %Y", "%d-%b-%y", "%d.%m.%Y %H:%M Uhr",
    "%m/%d/%Y %I:%M %p", "%Y/%m/%d", "%a, %d %b %Y", "%b-%y", "%Y-%m-%dT%H:%M:%S+02:00",
]  # fmt: skip


@pytest.mark.parametrize("form", DATES)
def test_dates_are_read_as_people_write_them_and_one_slip_is_missing(form: str, tmp_path: Path) -> None:
    days = pd.to_datetime([f"20{10 + index % 12}-{index % 12 + 1:02}-{index * 7 % 28 + 1:02}" for index in range(ROWS)])
    cells = [day.strftime(form) for day in days]
    cells[5] = "31.02.2020"
    task = read(table(tmp_path, "d;z;y", cells, NOISE, LABELS, delimiter=";"), validation_share=0.001)
    date = next(one for one in task.encoding.numbers if one.name == "d")
    assert date.is_date
    assert date.marks
    since_1970 = (days - pd.Timestamp(0)).days.to_numpy()
    assert date.mean == pytest.approx(np.delete(since_1970, 5).mean(), abs=20)
    assert "31.02.2020" in findings(task)
    assert_exported_model_agrees(task, tmp_path / "t.csv")


def test_what_cells_leave_open_is_decided_by_the_file_or_an_option_and_said(tmp_path: Path) -> None:
    dates = [f"{index % 12 + 1}/{index % 11 + 1}/2020" for index in range(ROWS)]
    amounts = [f'"{index % 9 + 1},{index * 7 % 1000:03}"' for index in range(ROWS)]
    path = table(tmp_path, "d,v,z,y", dates, amounts, NOISE, LABELS)
    task = read(path)
    assert "has the month first by assumption: --set task_options.day_first=true" in findings(task)
    assert "read with thousands by assumption: --set 'task_options.decimal=\",\"'" in findings(task)
    assert next(one for one in task.encoding.numbers if one.name == "v").median > 1000
    other = read(path, decimal=",", day_first=True)
    assert next(one for one in other.encoding.numbers if one.name == "v").median < 10
    assert "by assumption" not in findings(other)
    with_commas = [f"{x:.1f}".replace(".", ",") for x in X]
    german = table(tmp_path, "d;v;z;y", dates, [f"{i % 9 + 1}.{i * 7 % 1000:03}" for i in range(ROWS)],
                   with_commas, LABELS, delimiter=";")  # fmt: skip
    assert next(one for one in read(german).encoding.numbers if one.name == "v").median > 1000


ROW_NUMBERS: dict[str, tuple[str, Sequence[object]]] = {
    "shuffled, without a name": ("", ORDER),
    "from pandas, shuffled": ("Unnamed: 0", ORDER),
    "with gaps": ("q", [2 * one + one % 2 for one in range(ROWS)]),
    "a share of a larger table": ("q", [one * 3 // 2 for one in ORDER]),
    "descending": ("q", [ROWS - one for one in range(ROWS)]),
    "from R": ("X", [one + 1 for one in ORDER]),
    "of a later part of a file": ("q", range(5000, 5000 + ROWS)),
    "restarted": ("nr", [one % 60 for one in range(ROWS)]),
    "restarted and shuffled": ("q", [one % 60 for one in ORDER]),
    "of digits": ("q", [f"{one:05}" for one in ORDER]),
    "far apart, with a name": ("customer_id", [10**6 + one * one * 13 for one in ORDER]),
    "fractions of whole numbers": ("index", [float(one) for one in ORDER]),
    "nearly different texts": ("q", [f"a{max(one, 3)}" for one in ORDER]),
}


@pytest.mark.parametrize("kind", ROW_NUMBERS)
def test_columns_that_number_or_name_the_rows_are_left_out_and_said(kind: str, tmp_path: Path) -> None:
    name, numbers = ROW_NUMBERS[kind]
    path = table(tmp_path, f"{name},v,y", numbers, X, LABELS)
    task = read(path)
    name = name or "column_0"
    assert list(task.encoding.left_out) == [name]
    assert f"{name!r} is left out" in findings(task)
    option = "categorical" if "almost every" in findings(task) else "numeric"
    assert name not in read(path, **{option: [name]}).encoding.left_out
    counts = {"descending", "of a later part of a file"}
    assert "the number of the row" not in str(Tabular(path).encoding.left_out) or kind in counts


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("age", [20 + one * 7 % 50 for one in range(ROWS)]),
        ("hour", [one % 24 for one in range(ROWS)]),
        ("income", [int(30_000 + 9_000 * x) for x in X]),
        ("id", [one % 5 for one in range(ROWS)]),
        ("year", range(1950, 1950 + ROWS)),
        ("Jahr", range(2023, 2023 - ROWS, -1)),
        ("dayofyear", range(1, 1 + ROWS)),
        ("wavelength", range(400, 400 + 4 * ROWS, 4)),
        ("depth_cm", range(10, 10 + 10 * ROWS, 10)),
        ("dose", ORDER),
        ("age", [20 + one % 60 for one in range(ROWS)]),
        ("cycle", [1 + one % 60 for one in range(ROWS)]),
        ("t", [one % 40 for one in range(ROWS)]),
        ("house_no", [one + 3 for one in ORDER]),
        ("score", [300 + 2 * one for one in range(ROWS)]),
        ("when", [f"20{10 + one % 12}-{one % 12 + 1:02}-{one * 7 % 28 + 1:02}" for one in range(ROWS)]),
    ],
)
def test_other_columns_of_different_numbers_stay(name: str, numbers: Sequence[object], tmp_path: Path) -> None:
    assert not read(table(tmp_path, f"{name},v,y", numbers, X, LABELS)).encoding.left_out


def test_the_index_of_pandas_is_left_out_of_parquet(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": X, "1": LABELS}, index=pd.Index([f"k{one * one}" for one in ORDER], name="customer"))
    frame.to_parquet(tmp_path / "named.parquet")
    frame.reset_index(drop=True).reindex(ORDER).to_parquet(tmp_path / "plain.parquet")
    assert list(read(str(tmp_path / "named.parquet"), 1).encoding.left_out) == ["customer"]
    task = read(str(tmp_path / "plain.parquet"), 1)
    assert (task._target.column, task.classes, task.encoding.left_out) == ("1", ("no", "yes"), {})


HEADERS: dict[str, tuple[str, bool]] = {
    "2018,2019,2020": ("{x:.2f},{z:.2f},{z:.1f}", True),
    "shop,2019,2020": ("s{i},{x:.2f},{z:.2f}", True),
    "0,1,2": ("{x:.2f},{z:.2f},{z:.1f}", True),
    "1,2,3,label": ("{j},{x:.2f},{z:.2f},{label}", True),
    ",0,1": ("{i},{x:.2f},{z:.2f}", True),
    "0,1": ("{x:.2f},{z:.2f}", True),
    "shop,01.01.2020,01.02.2020": ("s{j},{x:.2f},{z:.2f}", True),
    "a,b,1": ("{x:.2f},{z:.2f},{label}", True),
    "10,25,75": ("{x:.2f},{z:.2f},{z:.1f}", True),
    "2004,0.5,yes": ("20{j:02},{x:.2f},{label}", False),
    "1,2,no": ("{j},{j},{label}", False),
    "3,0,7": ("{j},{j},{j}", False),
    "01.02.2020,0.5,no": ("0{j}.01.2020,{x:.2f},{label}", False),
    "Rome0,yes": ("Rome{j},{label}", False),
}


@pytest.mark.parametrize("first", HEADERS)
def test_a_first_line_of_numbers_may_be_names_and_what_was_taken_is_said(first: str, tmp_path: Path) -> None:
    line, has_names = HEADERS[first]
    lines = [line.format(x=X[i], z=NOISE[i], i=i, j=i % 10, label=LABELS[i]) for i in range(ROWS)]
    (tmp_path / "t.csv").write_text("\n".join([first, *lines]) + "\n")
    task = read(str(tmp_path / "t.csv"))
    sizes = sum(len(part[1]) for part in task._parts.values())
    assert sizes == ROWS + (not has_names)
    is_sure = first == "shop,01.01.2020,01.02.2020"
    assert ("--set task_options.header=" in findings(task)) != is_sure
    assert f"--set task_options.header={str(not has_names).lower()}" in findings(task) or is_sure


@pytest.mark.parametrize("delimiter", ";\t|:")
def test_the_named_target_decides_the_delimiter(delimiter: str, tmp_path: Path) -> None:
    rows = [["Price, EUR", "City"], *([f"{100 * x:.0f}, 5", "Bonn" if x > 0 else "Ulm"] for x in X)]
    task = read(write(tmp_path / "t.csv", rows, delimiter), "City")
    assert (task.classes, task._columns) == (("Bonn", "Ulm"), ("Price, EUR", "City"))
    assert_exported_model_agrees(task, tmp_path / "t.csv")


@pytest.mark.parametrize("word", ["#N/A", "-", "UNKNOWN", "k.A.", "keine Angabe", "not available", "\\N", "nix"])
def test_words_for_missing_do_not_make_numbers_categories_and_a_users_word_is_added(word: str, tmp_path: Path) -> None:
    cells = [word if one % 3 == 0 else "NA" if one % 7 == 0 else f"{x:.3f}" for one, x in enumerate(X)]
    path = table(tmp_path, "v,z,y", cells, NOISE, LABELS)
    for options in ({}, {"missing": [word]}, {"missing": -7}):
        task = read(path, **({"missing": [-7]} if options == {"missing": -7} else options))
        assert [one.name for one in task.encoding.numbers] == ["v", "z"]
        assert ("'nix' in 'v' counts as missing" in findings(task)) == (
            word == "nix" and options != {"missing": [word]}
        )
    assert_exported_model_agrees(task, tmp_path / "t.csv")


def test_digits_with_leading_zeros_are_codes(tmp_path: Path) -> None:
    codes = [f"{one % 30 * 37:05}" for one in range(ROWS)]
    path = table(tmp_path, "zip,z,y", codes, NOISE, LABELS)
    task = read(path)
    assert len(task.encoding.categories[0].levels) > 25
    assert "'zip' are codes with leading zeros, not numbers: --set task_options.numeric=[zip]" in findings(task)
    assert [one.name for one in read(path, numeric=["zip"]).encoding.numbers] == ["zip", "z"]
    assert len(read(path, "zip").classes) == 30


TARGETS: dict[str, tuple[Callable[[int], str], tuple[str, ...], str]] = {
    "spellings": (
        lambda i: ["YES", "Yes", "YES", "yes "][i % 4] if X[i] > 0 else "no",
        ("YES", "no"),
        "merge_spellings=false keeps",
    ),
    "wide and unseen letters": (
        lambda i: ["Zürich", "Zürich", "Zu\u0308rich", "\uff3aürich", "'Zürich'", "Zürich\u200b", "Bern"][i % 7],
        ("Bern", "Zürich"),
        "count as one class",
    ),
    "1.0": (lambda i: "1.0" if i == 7 else str(i % 2), ("0", "1"), "'1' = '1.0'"),
    "blanks": (lambda i: "New  York" if i % 2 else "new york" if i % 4 else "Rome", ("New  York", "Rome"), "merge_"),
    "genotypes": (lambda i: ["AA", "Aa", "aa"][i % 3], ("AA", "Aa", "aa"), "merge_spellings=true"),
    "None": (lambda i: ["None", "Mild", "Severe"][i % 3], ("Mild", "None", "Severe"), "missing=[None] leaves"),
    "NA": (lambda i: ["NA", "EU"][i % 2], ("EU", "NA"), "missing=[NA] leaves"),
    "empty": (lambda i: ["", "b", "a"][i % 3], ("a", "b"), "33 % (40 rows) without a value in 'y' are left out"),
    "rare": (lambda i: "fraud" if i in {3, 90} else "fine", ("fine", "fraud"), "always answering 'fine' has an error"),
    "#N/A": (lambda i: "#N/A" if i % 5 == 0 else f"{X[i]:.2f}", (), "(24 rows) without a value in 'y' are left out"),
    "9999": (lambda i: "9999.0" if i in {5, 8} else f"{X[i]:.2f}", (), 'missing=["9999.0"]\' leaves these rows out'),
    "-1": (lambda i: "-1" if i in {5, 8} else f"{20 + X[i]:.2f}", (), 'missing=["-1"]\' leaves these rows out'),
    "far": (lambda i: f"{7e5 + i}" if i in {5, 8} else f"{X[i]:.2f}", (), "far from all others"),
    "euros": (lambda i: f"{X[i]:.2f} €".replace(".", ","), (), "'y' with a decimal comma, 'y' in €"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_unusual_targets_are_read_right_and_said(kind: str, tmp_path: Path) -> None:
    cell, classes, said = TARGETS[kind]
    path = table(tmp_path, "v;z;y", X, NOISE, list(map(cell, range(ROWS))), delimiter=";")
    task = read(path)
    assert task.classes == classes
    assert said in findings(task), findings(task)


def test_values_of_a_feature_that_stand_for_a_missing_one_are_said_with_the_option_that_reads_them(tmp_path):
    """Two codes of one column, a large number of a long tail, and a last day; honest ends of columns are not said."""
    days = [f"20{10 + i % 9}-0{1 + i % 8}-1{i % 7}" for i in ORDER]
    columns = {
        "age": [-999 if i % 15 == 0 else -888 if i % 17 == 0 else 20 + i % 60 for i in range(ROWS)],
        "income": ["9999999" if i % 20 == 3 else f"{1000 * np.exp(x):.2f}" for i, x in enumerate(X)],
        "until": ["9999-12-31" if i % 12 == 5 else day for i, day in enumerate(days)],
        "gain": [0 if i % 10 else 100 + i for i in range(ROWS)],
        "lognormal": [f"{np.exp(2 * x):.3f}" for x in NOISE],
        "since": ["1999-12-31" if i == 4 else day for i, day in enumerate(days)],
    }
    path = table(tmp_path, f"{','.join(columns)},y", *columns.values(), LABELS)
    said = findings(read(path))
    words = ["-999", "-888", "9999999", "9999-12-31"]
    assert "6.7 % (8 rows) of 'age' are -999, far from all others" in said
    assert said.count("far from all others") == 4
    assert f"task_options.missing={json.dumps(words)}" in said
    assert not {"gain", "lognormal", "since"} & set(re.findall(r"of '(\w+)' are", said))
    mended = read(path, missing=words)
    assert "far from all others" not in findings(mended)
    assert [one.name for one in mended.encoding.numbers] == list(columns)


@pytest.mark.parametrize("is_class", [True, False])
def test_a_column_that_tells_the_target_is_said_and_others_are_not(is_class: bool, tmp_path: Path) -> None:
    left = [f"2024-05-{one % 28 + 1:02}" if x > 0.5 else "" for one, x in enumerate(X)]
    labels = ["gone" if x > 0.5 else "there" for x in X]
    path = table(tmp_path, "z,left_on,price,y", NOISE, left, [f"{3 * x + 1:.5f}" for x in X], labels if is_class else X)
    said = findings(read(path))
    assert ("'left_on' alone predicts 'y'" in said) == is_class
    assert "'price' alone predicts 'y'" in said
    assert "--set task_options.ignore=[price]" in said
    assert "'z'" not in said


def test_copies_of_rows_and_rows_of_both_files_are_said(tmp_path: Path) -> None:
    rows: list[list[Any]] = [list(row) for row in zip(X, NOISE, LABELS, strict=True)]
    train = write(tmp_path / "train.csv", [["v", "z", "y"], *rows, *rows[:30]])
    test = write(tmp_path / "test.csv", [["v", "z", "y"], *rows[:7], *([x + 9, z, y] for x, z, y in rows)])
    said = findings(read(train, test=test))
    assert "20 % (30 rows) are copies of other rows" in said
    assert "7 different rows of test.csv are training rows, too" in said


PLAIN_TARGETS: dict[str, Callable[[int], str]] = {
    "twenty classes of equal size": lambda i: f"c{i % 20}",
    "a class of a third": lambda i: ["a", "a", "b"][i % 3],
    "a long tail": lambda i: f"{np.exp(2 * NOISE[i]):.4f}",
    "half zeros and a long tail": lambda i: "0" if i % 2 else f"{np.exp(1.5 * NOISE[i]):.4f}",
}


@pytest.mark.parametrize("kind", PLAIN_TARGETS)
def test_usual_targets_say_nothing(kind: str, tmp_path: Path) -> None:
    path = table(
        tmp_path, "v;city;y", X, list("abcd" * (ROWS // 4)), list(map(PLAIN_TARGETS[kind], range(ROWS))), delimiter=";"
    )
    assert findings(read(path)) == ""


def test_plain_data_say_nothing_and_one_outlier_of_the_target_is_no_curve(tmp_path: Path) -> None:
    ages = [20 + one * 7 % 50 for one in range(ROWS)]
    path = table(tmp_path, "age,z,y", ages, NOISE, [*(f"{50 + 9 * x:.2f}" for x in X[:-1]), "1000000000"])
    assert "alone predicts" not in findings(read(path))
    assert "1000000000" in findings(read(path))
    cities = [["Rome", "Oslo", ""][one % 3] for one in range(ROWS)]
    check = read(table(tmp_path, "v,city,y", X, cities, LABELS)).data_check()
    assert check["findings"] == []
    assert check["columns"][1] == {"column": "city", "type": "category", "example": "Rome", "missing": 40, "levels": 2}
    assert [one["type"] for one in check["columns"]] == ["number", "category", "target"]


def test_the_options_of_existing_studies_keep_their_meaning(tmp_path: Path) -> None:
    cells = [f"{x:.1f}".replace(".", ",") for x in X]
    path = table(tmp_path, ";v;zip;y", ORDER, cells, [f"{one % 30:03}" for one in range(ROWS)], LABELS, delimiter=";")
    task = Tabular(path)
    assert [one.name for one in task.encoding.numbers] == ["column_0", "zip"]
    assert [one.name for one in task.encoding.categories] == ["v"]
    assert task.data_check() == {}
    assert "cells" not in task.preprocessing()
    with pytest.raises(TaskError, match="no value in the target column 'y'"):
        Tabular(table(tmp_path, "v,y", X, ["None", *LABELS[1:]]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("v,y\n1,é\n".encode("utf-16"), "Probably it is utf-16: --set task_options.encoding=utf-16"),
        ("v,y\n1,a\n".encode("utf-16-le"), "found zero bytes. Probably the encoding is utf-16"),
        ("v,y\n1 €,é\n".encode("cp1252"), "Probably it is cp1252: --set task_options.encoding=cp1252"),
        ("v,y\n1,é\n".encode("latin-1"), "Probably it is latin-1: --set task_options.encoding=latin-1"),
        (b"PK\x03\x04 and so on", "found a workbook or another zip file. Save the sheet as CSV"),
    ],
)
def test_a_file_of_another_encoding_is_refused_with_its_name(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(TaskError, match=re.escape(words)):
        read(str(tmp_path / "t.csv"))


def test_words_are_refused_with_their_line_in_other_files_and_columns_of_parquet_have_types(tmp_path: Path) -> None:
    train = table(tmp_path, "v;y", [f"{x:.1f} kg".replace(".", ",") for x in X], LABELS, delimiter=";")
    write(tmp_path / "test.csv", [["v", "y"], ["1,5 kg", "yes"], ["2 t", "no"]], ";")
    with pytest.raises(TaskError, match=r"test\.csv: line 3, column 'v': found '2 t', allowed: a number; or name"):
        read(train, test=str(tmp_path / "test.csv"))
    assert read(train).encode([{"v": 1.5}, {"v": "1,5"}, {"v": "1,5 kg"}]).unique().numel() == 1
    with pytest.raises(TaskError, match="row 1, column 'v': found '2 t', allowed: a number, or None"):
        read(train).encode([{"v": "2 t"}])
    days = pd.date_range("2020-01-01", periods=ROWS)
    columns = {"id": ORDER, "v": X, "d": days, "y": LABELS, "list": [[1]] * ROWS, "nothing": [None] * ROWS}
    pa.parquet.write_table(pa.table({name: pa.array(one) for name, one in columns.items()}), tmp_path / "t.parquet")
    task = read(str(tmp_path / "t.parquet"), "y", ignore=["list"])
    assert task.encoding.left_out == {"id": "a row number", "nothing": "empty"}
    assert [one.is_date for one in task.encoding.numbers] == [False, True]
    assert [one["levels"] for one in task.data_check()["columns"]] == [ROWS, ROWS, ROWS, 2, 0, 0]
