"""Manifests and files of a model that would hang, fill the memory or end in a traceback are refused in one line."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from automl.exporting.atomic_outputs import ExportError
from automl.predicting.predict_rows import opened_model, predict_file
from automl.predicting.row_files import rows_of
from automl.standalone.errors import InputError, ModelError
from automl.standalone.image_rows import ImageRows
from automl.standalone.model import Model
from automl.standalone.text_rows import TextRows
from studies.spec.spec_errors import SpecError
from studies.spec.study_spec import load_spec
from tests.support import optional

ARRAY = {"kind": "array", "dtype": "float32", "shape": [3]}
TABLE = {
    "kind": "table", "missing": [], "known": ["a"], "farthest": 5.0, "categories": [],
    "numbers": [{"name": "a", "is_date": False, "mean": "1", "deviation": 2.0, "median": 1.0, "marks": False}],
}  # fmt: skip


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def model_of(rows: Mapping[str, Any]) -> Model:
    return Model({"rows": rows, "answers": {"kind": "array"}}, [])


@pytest.mark.parametrize("name", ["manifest.json", "m.pt2"])
@pytest.mark.parametrize("make", [zeros, os.mkfifo])
def test_a_device_or_a_fifo_is_no_file_of_a_model(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """A device may never end, and a FIFO may have no writer."""
    (tmp_path / "manifest.json").write_text(
        json.dumps({"format": 1, "programs": ["m.pt2"], "rows": ARRAY, "answers": {"kind": "array"}})
    )
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(ExportError, match=f"{name} is not a regular file"):
        opened_model(tmp_path)


def test_an_image_is_a_regular_file_and_a_spec_that_never_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(InputError, match="it is not a regular file"):
        ImageRows({"channels": 3, "height": 8, "width": 8}).encode(str(tmp_path / "a.png"), 0)
    zeros(tmp_path / "s.yaml")
    with pytest.raises(SpecError, match="found more than 1,000,000 characters"):
        load_spec(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    "rows",
    [{**ARRAY, "shape": [10**12]}, {**ARRAY, "shape": [-1, 2**14, 2**13]},
     {"kind": "image", "channels": 3, "height": 10**6, "width": 10**6}],
)  # fmt: skip
def test_a_row_that_fills_the_memory_is_refused(rows: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="more than 67,108,864 numbers"):
        model_of(rows)
    model_of({**ARRAY, "shape": [-1, 2**13, 2**13]})


@pytest.mark.parametrize("encoding", ["undefined", "zlib", "rot13", "no such", "\0"])
def test_an_encoding_that_reads_no_text_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with pytest.raises(ExportError, match=r"^rows\.encoding of the model: found "):
        list(rows_of(tmp_path / "rows.csv", {**TABLE, "encoding": encoding}))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1", "cp1252", "shift_jis"])
def test_encodings_of_texts_are_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n", encoding=encoding)
    assert [row for _, row in rows_of(tmp_path / "rows.csv", {**TABLE, "encoding": encoding})] == [{"a": "1"}]


def test_a_damaged_scale_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n7\n")
    with pytest.raises(ExportError, match=r"line 2: the model fails with this row \(TypeError: "):
        predict_file(model_of(TABLE), tmp_path / "rows.csv", None)


def test_a_tokenizer_does_not_pad() -> None:
    """Padding to a billion tokens would take 8 GiB."""
    tokenizers = optional.module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.enable_padding(length=1000)
    form = {"longest": 9, "keep": "start", "pad": 0, "unknown": 0, "first": None, "tokenizer": tokenizer.to_str()}
    assert list(TextRows(form).encode("b", 0).numbers) == [1]
