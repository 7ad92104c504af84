"""What a row says is the same to the training, to a file of new rows, and to the model that was taken away."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch

from automl.exporting.atomic_outputs import ExportError
from automl.predicting.row_files import rows_of
from automl.standalone.table_rows import TableRows
from automl.standalone.text_rows import TextRows
from tests.trainers.tasks.test_text_checkpoint import byte_tokenizer
from trainers.protocol import TaskError
from trainers.tasks.shared.split_task import split
from trainers.tasks.tabular import Tabular
from trainers.tasks.text import Text
from trainers.tasks.words.tokens import form_of

ROWS = 60
START = datetime.fromisoformat("1969-12-30 02:45:54.560807")
MOMENTS = [START + timedelta(hours=7 * number) for number in range(ROWS)]
"""Moments before and after 1970, with microseconds and without a zone."""
Columns = Mapping[str, Sequence[Any]]


def csv_file(folder: Path, columns: Columns, delimiter: str = ",") -> Path:
    path = folder / "train.csv"
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in rows))
    return path


def parquet_file(folder: Path, columns: Columns, name: str = "train.parquet") -> Path:
    path = folder / name
    pa_parquet.write_table(pa.table(dict(columns)), path)
    return path


def with_target(column: Sequence[Any], name: str = "x") -> dict[str, Sequence[Any]]:
    return {name: column, "y": [("no", "yes")[number % 2] for number in range(len(column))]}


def taken_away(task: Tabular) -> TableRows:
    return TableRows(json.loads(json.dumps(task.preprocessing())))


def encoded(model: TableRows, rows: Sequence[Mapping[str, Any]]) -> Any:
    return np.array([np.array(model.encode(row, number).numbers) for number, row in enumerate(rows)])


def check_all_agree(task: Tabular, path: Path) -> Any:
    """Check that a file is read alike by the task and by its exported model; return the rows, float32 [n, columns]."""
    model = taken_away(task)
    theirs = encoded(model, [row for _, row in rows_of(path, task.preprocessing())])
    ours = task.encode(path).numpy()
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    return ours


@pytest.mark.parametrize("words", [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
def test_a_boolean_is_the_same_however_it_is_written(tmp_path: Path, words: tuple[str, str]) -> None:
    values = [number % 3 == 0 for number in range(ROWS)]
    task = Tabular(str(csv_file(tmp_path, with_target([words[not one] for one in values]))), "y")
    model = taken_away(task)
    expected = check_all_agree(task, tmp_path / "train.csv")
    assert set(expected[:, 0]) == {2.0, 3.0}
    for rows in (
        [{"x": value} for value in values],
        [{"x": np.bool_(value)} for value in values],
        [{"x": str(value)} for value in values],
    ):
        assert np.array_equal(encoded(model, rows), expected)
        assert np.array_equal(task.encode(rows).numpy(), expected)
    other = parquet_file(tmp_path, with_target(values), "other.parquet")
    assert np.array_equal(check_all_agree(task, other), expected)


def test_equal_numbers_are_one_category_and_different_words_stay_apart(tmp_path: Path) -> None:
    path = csv_file(tmp_path, with_target([f"{number % 3}.0" if number else "" for number in range(ROWS)]))
    task = Tabular(str(path), "y", categorical=["x"])
    model, expected = taken_away(task), check_all_agree(task, path)
    for kind in (float, int, str, np.float64, np.int64):
        rows = [{"x": None if number == 0 else kind(number % 3)} for number in range(ROWS)]
        assert np.array_equal(encoded(model, rows), expected), kind
    assert encoded(model, [{"x": 7}]).tolist() == [[0.0]]
    words = ["true", "True", "1", "1.0", "01"]
    task = Tabular(str(csv_file(tmp_path, with_target([words[number % 5] for number in range(ROWS)]))), "y",
                   categorical=["x"])  # fmt: skip
    levels = encoded(taken_away(task), [{"x": word} for word in [*words, "TRUE", "001"]])[:, 0]
    assert sorted(levels[:5]) == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert levels[5:].tolist() == [0.0, 0.0], "nobody knows which one is meant"
    task = Tabular(str(csv_file(tmp_path, with_target([number * 0.5 for number in range(ROWS)][::-1]))), "y")
    assert (
        len(set(encoded(taken_away(task), [{"x": kind(1.5)} for kind in (float, np.float64, np.float32, str)])[:, 0]))
        == 1
    )


@pytest.mark.parametrize("kind", [float, int])
def test_a_number_that_stands_for_nothing_does_so_in_parquet(tmp_path: Path, kind: type) -> None:
    numbers = [kind(-999) if number % 5 == 0 else kind(number) for number in range(ROWS)]
    path = parquet_file(tmp_path, with_target(numbers))
    task = Tabular(str(path), "y", missing=["-999"])
    (number,) = task.encoding.numbers
    assert number.marks
    assert 0 < number.mean < ROWS
    assert check_all_agree(task, path)[:, 1].tolist() == [float(one == -999) for one in numbers]
    assert encoded(taken_away(task), [{"x": -999}, {"x": -999.0}, {"x": None}])[:, 1].tolist() == [1.0] * 3


def test_files_with_the_index_of_pandas_are_read_back(tmp_path: Path) -> None:
    shuffled = np.random.default_rng(0).permutation(ROWS).tolist()
    path = csv_file(tmp_path, {"": shuffled, **with_target([number * 0.1 for number in shuffled])})
    check_all_agree(Tabular(str(path), "y"), path)
    path = parquet_file(tmp_path, {**with_target([number * 0.1 for number in shuffled]), "__index_level_0__": shuffled})
    check_all_agree(Tabular(str(path), "y"), path)


@pytest.mark.parametrize(
    "cells",
    [
        [str(moment) for moment in MOMENTS],
        [moment.isoformat(timespec="minutes") for moment in MOMENTS],
        [f"{moment.isoformat()}Z" for moment in MOMENTS],
        [f"{moment.isoformat()}+05:30" if moment.hour % 2 else str(moment.date()) for moment in MOMENTS],
        [f"{moment.isoformat(timespec='milliseconds')}-0800" for moment in MOMENTS],
    ],
)
def test_moments_written_as_text(tmp_path: Path, cells: list[str]) -> None:
    path = csv_file(tmp_path, with_target(cells))
    task = Tabular(str(path), "y")
    (number,) = task.encoding.numbers
    assert number.is_date
    days = check_all_agree(task, path)[:, 0] * number.deviation + number.mean
    expected = [datetime.fromisoformat(cell) for cell in cells]
    utc = [one.replace(tzinfo=UTC) if one.tzinfo is None else one for one in expected]
    np.testing.assert_allclose(days, [one.timestamp() / 86_400 for one in utc], atol=1e-4)


@pytest.mark.parametrize(
    "column",
    [
        *[pa.array(MOMENTS, pa.timestamp(unit)) for unit in ("ms", "us", "ns")],
        *[pa.array(MOMENTS, pa.timestamp("us")).cast(pa.timestamp("us", zone)) for zone in ("UTC", "Asia/Tokyo")],
        pa.array([one.date() for one in MOMENTS], pa.date32()),
        pa.array([one.replace(microsecond=0) for one in MOMENTS], pa.timestamp("s")),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_moments_of_parquet(tmp_path: Path, column: pa.Array) -> None:
    path = parquet_file(tmp_path, with_target(column))
    task = Tabular(str(path), "y")
    assert task.encoding.numbers[0].is_date
    check_all_agree(task, path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal(number % 30 + 10).scaleb(-2) for number in range(ROWS * 3)], pa.decimal128(10, 2)),
        pa.array([datetime(2024, 1, 1 + number % 3, 8) for number in range(ROWS)], pa.timestamp("us")),  # noqa: DTZ001
        pa.array([one for one in MOMENTS[:3] for _ in range(20)], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([time(number % 3) for number in range(ROWS)], pa.time64("us")),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_categories_of_parquet_are_levels_by_what_python_has_of_them(tmp_path: Path, column: pa.Array) -> None:
    path = parquet_file(tmp_path, with_target(column))
    task = Tabular(str(path), "y", categorical=["x"])
    assert min(check_all_agree(task, path)[:, 0]) >= 2, "no row is unknown"
    rows = [{"x": cell} for cell in column.to_pylist()]
    assert np.array_equal(task.encode(rows).numpy(), encoded(taken_away(task), rows))


def test_a_decimal_may_stand_for_nothing_and_a_moment_have_a_zone(tmp_path: Path) -> None:
    cells = [Decimal("-999.00") if number % 4 == 0 else Decimal(number) / 8 for number in range(ROWS)]
    path = parquet_file(tmp_path, with_target(pa.array(cells, pa.decimal128(10, 3))))
    task = Tabular(str(path), "y", missing=["-999"])
    assert check_all_agree(task, path)[:, 1].tolist() == [float(number % 4 == 0) for number in range(ROWS)]
    assert encoded(taken_away(task), [{"x": Decimal(-999)}, {"x": Decimal("NaN")}])[:, 1].tolist() == [1.0, 1.0]
    task = Tabular(str(csv_file(tmp_path, with_target([str(moment) for moment in MOMENTS]))), "y")
    noon = datetime(1970, 1, 3, 12, tzinfo=UTC)
    cells = [noon, noon.astimezone(ZoneInfo("Asia/Tokyo")), "1970-01-03T12:00:00Z", "1970-01-03 21:00:00+0900",
             noon.replace(tzinfo=None), "1970-01-03 12:00"]  # fmt: skip
    assert len(set(encoded(taken_away(task), [{"x": cell} for cell in cells])[:, 0])) == 1
    assert encoded(taken_away(task), [{"x": date(1970, 1, 3)}]) < encoded(taken_away(task), [{"x": noon}])


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us")], ids=str)
def test_a_column_of_times_without_a_day_is_refused_by_its_name(tmp_path: Path, kind: pa.DataType) -> None:
    path = parquet_file(tmp_path, with_target(pa.array(range(ROWS), pa.int64()).cast(kind)))
    with pytest.raises(TaskError, match=re.escape(f"column 'x': found the type {kind}")):
        Tabular(str(path), "y")


def test_numbers_that_need_64_bits_are_numbers_and_equal_ones_constant(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, with_target([2**62 + number * 10**15 for number in range(ROWS)]))
    assert len(set(check_all_agree(Tabular(str(path), "y"), path)[:, 0])) == ROWS
    path = csv_file(tmp_path, {"constant": [0.1] * ROWS, **with_target(list(range(ROWS))[::-1])})
    assert Tabular(str(path), "y").encoding.left_out == {"constant": "constant"}


@pytest.mark.parametrize("scaling", ["standard", "robust"])
@pytest.mark.parametrize("slip", [1e12, -9223372036854775808])
def test_one_slip_does_not_make_all_other_values_equal(tmp_path: Path, slip: float, scaling: str) -> None:
    values = [slip, *(number * 7 % 100 for number in range(499))]
    path = csv_file(tmp_path, with_target(values))
    found = check_all_agree(Tabular(str(path), "y", scaling=scaling), path)[:, 0]
    assert len(set(found)) == 101
    zeros = [slip, *([0] * 400), *(number % 100 for number in range(99))]
    path = csv_file(tmp_path, with_target(zeros))
    assert len(set(check_all_agree(Tabular(str(path), "y", scaling=scaling), path)[:, 0])) == 100


def test_each_class_has_a_row_to_train_on() -> None:
    for rows in range(2, 9):
        classes = np.array([0] * 40 + [1] * rows)
        parts = split(classes, len(classes), validation=0.15, test=0.2)
        counts = [int((classes[part] == 1).sum()) for part in parts]
        assert counts[0] >= 1
        assert counts[1] >= 1
        assert sum(counts) == rows
        assert counts[2] >= (rows > 2)


def test_quotation_marks_and_bytes_are_text_to_the_exported_model_too(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    lines = [f"{number % 2}\t{text}" for number in range(10) for text in ('"I loved it.', 'Really."', '"all of it"')]
    path.write_text("label\ttext\n" + "\n".join(lines) + "\n")
    task = Text(str(path))
    found = [text for _, text in rows_of(path, task.preprocessing())]
    assert found == ['"I loved it.', 'Really."', "all of it"] * 10
    texts = [f"{('a good film, très bien', 'a bad one')[number % 2]} {number}" for number in range(30)]
    columns = {"text": pa.array([one.encode() for one in texts], pa.binary()), "label": ["no", "yes"] * 15}
    path = parquet_file(tmp_path, columns)
    form = Text(str(path)).preprocessing()
    assert [text for _, text in rows_of(path, form)] == texts
    bad = parquet_file(tmp_path, {"text": pa.array([b"caf\xe9"], pa.large_binary())}, "bad.parquet")
    with pytest.raises(ExportError, match=r"bad\.parquet: row 1: byte 0xe9 is not UTF-8"):
        list(rows_of(bad, form))


@pytest.mark.medium
def test_a_file_without_names_is_read_as_the_training_file_was(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    texts = [f"this is {('bad', 'good')[number % 2]} number {number}" for number in range(30)]
    path.write_text("".join(f"{number % 2},{text}\n" for number, text in enumerate(texts)))
    form = Text(str(path)).preprocessing()
    assert [text for _, text in rows_of(path, form)] == texts
    assert [text for _, text in rows_of(path, form, "column_1")] == texts
    alone = tmp_path / "alone.csv"
    alone.write_text("".join(f"{text}\n" for text in texts))
    assert [text for _, text in rows_of(alone, form)] == texts
    named = tmp_path / "named.csv"
    named.write_text("sentence\n" + "".join(f"{text}\n" for text in texts))
    assert [text for _, text in rows_of(named, form, "sentence")] == texts


@pytest.mark.medium
@pytest.mark.parametrize("name", ["train.csv", "train.parquet"])
def test_spaces_and_line_breaks_are_the_same_tokens_everywhere(tmp_path: Path, name: str) -> None:
    """Tokenizers of bytes, as of RoBERTa, have tokens for the space at the end of a text, and for both line breaks."""
    texts = ["good film\r\nbad film", "a bad film \t", " film"] * 10
    if name == "train.csv":
        rows = "".join(f'"{text}",{number % 2}\r\n' for number, text in enumerate(texts))
        (tmp_path / name).write_bytes(f"sentence,label\r\n{rows}".encode())
    else:
        parquet_file(tmp_path, {"sentence": texts, "label": [0, 1] * 15}, name)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    task = Text(str(tmp_path / name), "sentence", checkpoint=str(tmp_path))
    form = json.loads(json.dumps(task.preprocessing()))
    read = [text for _, text in rows_of(tmp_path / name, form)]
    trained = task.encode(str(tmp_path / name))
    assert torch.equal(task.encode(texts), trained)
    alone = TextRows(form)
    for given in (texts, read):
        for row, expected in zip(given, trained.tolist(), strict=True):
            tokens = list(alone.encode(row, 0).numbers)
            assert tokens == expected[: len(tokens)]
            assert set(expected[len(tokens) :]) <= {form["pad"]}


def test_a_model_of_before_takes_texts_as_they_are() -> None:
    rows = TextRows(form_of(byte_tokenizer(), longest=32, pad=0))
    assert len({tuple(rows.encode(text, 0).numbers) for text in ("film\nbad", "film\r\nbad", "film\nbad ")}) == 3


def test_lines_may_end_as_on_an_old_mac_but_not_within_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(
        "".join(f"{line}\r" for line in ["x,y", *(f"{n * 7 % 23}.5,{'ab'[n % 2]}" for n in range(ROWS))]).encode()
    )
    assert len(check_all_agree(Tabular(str(path), "y"), path)) == ROWS
    path = tmp_path / "train.csv"
    path.write_bytes(
        b"x,t,y\n" + b"".join(b"%d.5,word %d,%s\n" % (n * 7 % 23, n, b"ab"[n % 2 :][:1]) for n in range(ROWS))
    )
    path.write_bytes(path.read_bytes().replace(b"word 7", b"wo\rrd 7"))
    with pytest.raises(TaskError, match=r"train\.csv: line 9: found 2 columns, allowed: 3, as in the first row"):
        Tabular(str(path), "y")
