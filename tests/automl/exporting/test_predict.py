"""`automl predict`: all kinds of files, answers as they were printed for one row, and rows that do not fit."""

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.formats import save_program
from automl.predicting.predict_rows import predict_file
from automl.predicting.row_files import rows_of as rows_in
from automl.standalone.model import load, rows_of
from tests.automl.exporting.test_standalone import pictures, texts, trained
from tests.automl.serving.models import cubes
from tests.support import optional
from tests.support.command_line import Workplace, message_of
from tests.support.task_files import HEADER, people, write
from trainers.model.traced_program import example_call, traced
from trainers.tasks.tabular import Tabular


def automl(*arguments: object, exit_code: int = 0) -> Any:
    with TemporaryDirectory() as folder:
        return Workplace(Path(folder), None).run(*arguments, code=exit_code)


ROWS = [[30, "Rome", "0.5", "yes"], [70, "Oslo", "", "no"], [50, "Lima", "NA", "yes"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    train = write(folder / "train.csv", [HEADER, *people(200)])
    return trained(folder, "tabular", {"train": train}, {}).written(folder / "model")


def answers_of(model: Path) -> list[dict[str, Any]]:
    return load(model).predict([dict(zip(HEADER, row, strict=True)) for row in ROWS])


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".jsonl"])
def test_rows_of_every_kind_of_file_get_the_same_answers(model: Path, tmp_path: Path, ending: str) -> None:
    data, out = tmp_path / f"new{ending}", tmp_path / "answers.jsonl"
    named = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    if ending == ".parquet":
        pa_parquet.write_table(pa.Table.from_pylist(named), data)
    elif ending == ".jsonl":
        data.write_text("".join(json.dumps(row) + "\n" for row in named))
    else:
        write(data, [HEADER, *ROWS], "\t" if ending == ".tsv" else ",")
        if ending.endswith(".gz"):
            data.write_bytes(gzip.compress(data.read_bytes()))
    told = automl("predict", model, data, "--out", out, "--json")
    assert json.loads(told.stdout)["rows"] == 3
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one.pop("row") for one in found] == [1, 2, 3]
    assert found == answers_of(model)


def test_answers_as_csv_parquet_and_on_stdout_are_the_same(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "new.csv"
    write(data, [HEADER, *ROWS])
    automl("predict", model, data, "--out", tmp_path / "a.csv")
    automl("predict", model, data, "--out", tmp_path / "a.parquet")
    printed = automl("predict", model, data).stdout
    assert printed == (tmp_path / "a.csv").read_text()
    rows = list(csv.DictReader(printed.splitlines()))
    assert list(rows[0]) == ["row", "label", "confidence", "p(no)", "p(yes)"]
    for row, answer, stored in zip(
        rows, answers_of(model), pa_parquet.read_table(tmp_path / "a.parquet").to_pylist(), strict=True
    ):
        assert row["label"] == answer["label"] == stored["label"]
        assert float(row["confidence"]) == answer["confidence"] == stored["confidence"]


@pytest.mark.medium
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_columns_that_the_model_does_not_know_are_named_and_an_id_is_kept(model, tmp_path, ending):
    rows = [
        {"customer": f"c{index}", "note": "", **dict(zip(HEADER, row, strict=True))} for index, row in enumerate(ROWS)
    ]
    data, notes = tmp_path / f"new{ending}", list[str]()
    if ending == ".parquet":
        pa_parquet.write_table(pa.Table.from_pylist(rows), data)
    elif ending == ".jsonl":
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write(data, [list(rows[0]), *(list(row.values()) for row in rows)])
    loaded = load(model)
    assert predict_file(loaded, data, tmp_path / "a.csv", id_column="customer", on_note=notes.append) == 3
    answers = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [one["customer"] for one in answers] == ["c0", "c1", "c2"]
    assert [one["label"] for one in answers] == [one["label"] for one in answers_of(model)]
    assert notes == [f"{data}: the model was trained without 'note', which is ignored."]
    with pytest.raises(ExportError, match=r"--id: .* has no column 'custmer'\. .*; did you mean 'customer'"):
        predict_file(loaded, data, None, id_column="custmer")


def test_a_file_without_names_is_read_as_the_training_file_was(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", people(200))
    model = trained(tmp_path, "tabular", {"train": train, "header": False}, {}).written(tmp_path / "model")
    write(tmp_path / "whole.csv", ROWS)
    write(tmp_path / "without target.csv", [row[:3] for row in ROWS])
    whole = automl("predict", model, tmp_path / "whole.csv").stdout
    assert len(whole.splitlines()) == 4
    assert automl("predict", model, tmp_path / "without target.csv").stdout == whole


@pytest.mark.parametrize(("ending", "delimiter", "header", "options"), [
    (".csv", ";", ["size (cm, wide, tall)", "c", "y"], {}), (".csv", "^", None, {"delimiter": "^"}),
    (".txt", " ", ["size", "c", "y"], {"delimiter": "space"}), (".csv", "^", ["size", "c", "y"], {"delimiter": "^"}),
    (".csv", ",", ["größe", "c", "y"], {"encoding": "latin-1"}),
    (".csv", ";", ["größe", "c", "y"], {"encoding": "utf-16"}),
    (".csv", ",", ["größe", "c", "y"], {"encoding": "UTF8"}),
])  # fmt: skip
def test_a_file_is_read_as_the_training_file_was(tmp_path, ending, delimiter, header, options):
    rows = [[f"{number * 7 % 40}.5", "äö"[number % 2], "xz"[number % 2]] for number in range(40)]
    lines = rows if header is None else [header, *rows]
    file = tmp_path / f"train{ending}"
    text = "".join(delimiter.join(line) + "\n" for line in lines)
    file.write_text(text, encoding=options.get("encoding", "utf-8"))
    form = Tabular(str(file), "last", **options).preprocessing()
    names = header or ["column_0", "column_1", "column_2"]
    read = [row for _, row in rows_in(file, json.loads(json.dumps(form)))]
    assert read == [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize(("trained", "found"), [(" ", ","), (",", ";"), (None, "|"), ("^", ";")])
def test_a_file_with_another_delimiter_than_training_is_read_by_its_names(tmp_path, trained, found):
    path = tmp_path / "new.csv"
    path.write_text(found.join(["a, b c", "d"]) + "\n1" + found + "2\n" if found != "," else '"a, b c",d\n1,2\n')
    form = {"kind": "table", "known": ["a, b c", "d"], "delimiter": trained}
    assert [row for _, row in rows_in(path, form)] == [{"a, b c": "1", "d": "2"}]


def test_a_file_in_another_encoding_than_the_training_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_bytes(b"a,b\n\xff,1\n")
    for encoding, said in (("ascii", "ascii, the encoding of the training file"), ("utf-8", "UTF-8")):
        with pytest.raises(ExportError, match=f"new.csv: byte 0xff is not {said}"):
            list(rows_in(path, {"kind": "table", "encoding": encoding}))
    with pytest.raises(ExportError, match=r"^rows\.encoding of the model: found 'utf-99', allowed: utf-8"):
        list(rows_in(path, {"kind": "table", "encoding": "utf-99"}))


@pytest.mark.medium
def test_texts_come_from_lines_and_from_columns(tmp_path: Path) -> None:
    optional.module("tokenizers")
    rows = texts(tmp_path / "train.tsv", 100, 0)
    options = {"train": str(tmp_path / "train.tsv"), "vocabulary": 200, "longest": 24}
    model = trained(tmp_path, "text", options, {"width": 32, "heads": 2}).written(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for _, text in rows))
    from_lines = automl("predict", model, tmp_path / "lines.txt").stdout
    assert len(from_lines.splitlines()) == 101
    assert automl("predict", model, tmp_path / "train.tsv").stdout == from_lines
    write(tmp_path / "other.csv", [["id", "words"], [1, "good film"]])
    done = automl("predict", model, tmp_path / "other.csv", exit_code=2)
    assert "there are several columns. Pass --column with one of 'id', 'words'" in message_of(done.stderr)
    assert len(automl("predict", model, tmp_path / "other.csv", "--column", "words").stdout.splitlines()) == 2


def test_a_folder_of_images(tmp_path: Path) -> None:
    made = pictures(tmp_path / "train", 40, 0)
    options = {"train": str(tmp_path / "train"), "size": 12}
    model = trained(tmp_path, "vision", options, {"channels": 8}).written(tmp_path / "model")
    printed = automl("predict", model, tmp_path / "train").stdout
    assert len(printed.splitlines()) == 41
    answers = {row["file"]: row["label"] for row in csv.DictReader(printed.splitlines())}
    assert sorted(answers) == sorted(path for path, _ in made)
    assert sum(answers[path] == label for path, label in made) > 20
    first, path = printed.splitlines()[1].split(","), min(path for path, _ in made)
    alone = automl("predict", model, path).stdout.splitlines()[1].split(",")
    assert alone[:3] == first[:3]
    assert float(alone[3]) == pytest.approx(float(first[3]), abs=1e-6)
    automl("predict", model, path, "--out", tmp_path / "one.jsonl")
    assert json.loads((tmp_path / "one.jsonl").read_text())["file"] == path


def test_hidden_files_of_a_folder_are_no_images(tmp_path: Path) -> None:
    """A zip file of a Mac has a file ._0.png beside each 0.png."""
    made = pictures(tmp_path / "new", 2, 0)
    path = Path(made[0][0])
    path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7Mac OS X")
    found = [row for _, row in rows_in(tmp_path / "new", {"kind": "image"})]
    assert found == sorted(path for path, _ in made)


def test_a_row_of_numbers_is_answered_alike_beside_a_longer_one(tmp_path: Path) -> None:
    model = load(cubes(tmp_path / "cubes.pt2"))
    rows = [[0.5, 0.25], [0.5, 0.25, 1.0, 1.0], [0.75, 0.5]]
    assert model.predict(rows) == [model.predict([row])[0] for row in rows]


def test_a_row_without_the_column_of_texts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_text('{"text": "good", "id": 1}\n{"id": 2}\n')
    with pytest.raises(ExportError, match=r"new\.jsonl: line 2: the column 'text' is missing, which the model needs"):
        list(rows_in(path, {"kind": "text", "column": "text"}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("age,city\n1,Rome\n", "line 2: found no column 'score', allowed: 'age', 'score', 'city'"),
        ("age,city,scor\n1,Rome,1\n", "found the unknown column 'scor' and no column 'score'"),
        ("age,city,score\n1,Rome,1\nold,Rome,1\n", "line 3, column 'age': found 'old', allowed: a finite number"),
        ("age,city,score\n1,Rome\n", "line 2: found 2 columns, but the first line has 3"),
        ("age,age,score\n1,2,3\n", "line 1: the column 'age' appears twice"),
        ("", "is empty. Name a file with rows of a table"),
        (None, "does not exist. Did you mean 'news.csv'?"),
        (b"\xff\xfe1", "byte 0xff is not UTF-8"),
    ],
)
def test_what_does_not_fit_is_one_line_and_no_file(model, tmp_path, content, words):
    data, out = tmp_path / "new.csv", tmp_path / "answers.csv"
    (tmp_path / "news.csv").touch()
    if content is not None:
        data.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = automl("predict", model, data, "--out", out, exit_code=2)
    assert words in message_of(done.stderr)
    assert sorted(one.name for one in tmp_path.iterdir() if "answers" in one.name) == []


@pytest.mark.medium
def test_a_file_larger_than_the_memory_is_answered(model: Path, tmp_path: Path) -> None:
    """The peak of the memory does not grow with the number of rows."""
    script = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from automl.predicting.predict_rows import opened_model, predict_file\n"
        "model = opened_model(Path(sys.argv[1]))\n"
        "predict_file(model, Path(sys.argv[2]), Path(sys.argv[4]))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "predict_file(model, Path(sys.argv[3]), Path(sys.argv[4]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    write(tmp_path / "few.csv", [HEADER, *ROWS * 400])
    wide = "x" * 2000
    write(tmp_path / "many.csv", [HEADER, *[[30, wide, "0.5", "yes"]] * 20_000])
    assert (tmp_path / "many.csv").stat().st_size > 40e6
    done = subprocess.run(
        [sys.executable, "-c", script, str(model), str(tmp_path / "few.csv"), str(tmp_path / "many.csv"),
         str(tmp_path / "out.csv")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 20_000, "KiB"


def test_pixels_of_sixteen_bits_are_cut_to_eight_as_in_training() -> None:
    image = optional.module("PIL.Image")
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    form = {"kind": "image", "channels": 1, "height": 256, "width": 256}
    content = io.BytesIO()
    image.fromarray(values).save(content, "PNG")
    encoded = rows_of(form).encode(content.getvalue(), 0)
    assert np.array_equal(np.frombuffer(encoded.numbers, np.uint8), (values // 257).astype(np.uint8).ravel())


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of rows of two numbers of tokens, of which it knows ten."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.pt2"
    network = torch.nn.Sequential(torch.nn.Embedding(10, 3), torch.nn.Flatten())
    manifest = {
        "format": 1, "programs": [path.name], "rows": {"kind": "array", "dtype": "int64", "shape": [2]},
        "answers": {"kind": "array"},
    }  # fmt: skip
    save_program(traced(example_call(network, (torch.zeros(2, 2, dtype=torch.int64),))), manifest, path)
    return path


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_whole_numbers_of_every_kind_of_file_reach_a_model_of_whole_numbers(tokens, tmp_path, ending):
    data, out = tmp_path / f"new{ending}", tmp_path / "answers.jsonl"
    if ending == ".csv":
        data.write_text("a,b\n1,2\n3.0,4e0\n")
    elif ending == ".parquet":
        pa_parquet.write_table(pa.table({"a": [1, 3], "b": [2.0, 4.0]}), data)
    else:
        data.write_text('{"a": 1, "b": 2}\n[3, 4]\n')
    assert predict_file(load(tokens), data, out) == 2
    found = [json.loads(line)["outputs"] for line in out.read_text().splitlines()]
    assert found == [one["outputs"] for one in load(tokens).predict([[1, 2], [3, 4]])]
    halves = tmp_path / "halves.csv"
    halves.write_text("a,b\n1,2.5\n")
    with pytest.raises(ExportError, match=r"halves.csv: line 2: found .*, allowed: numbers of the type int64"):
        predict_file(load(tokens), halves, out)


def test_a_row_with_which_the_model_fails_is_named(tokens: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "new.jsonl", tmp_path / "answers.csv"
    data.write_text("[1, 2]\n[3, 44]\n[5, 6]\n")
    done = automl("predict", tokens, data, "--out", out, exit_code=2)
    assert f"{data}: line 2: the model fails with this row (IndexError: " in message_of(done.stderr)
    assert not out.exists()
