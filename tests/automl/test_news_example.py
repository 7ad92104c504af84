"""The example of a news classifier: from a file of headlines to answers over HTTP, and the files that it takes."""

import csv
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from studies.spec.study_spec import parse_spec
from tests.support import optional
from tests.support.command_line import Workplace
from tests.support.paths import EXAMPLES, ROOT
from tests.support.waiting import wait_until

NEWS = EXAMPLES / "news"
FEW = (
    "--set=budget.trials=2", "--set=training.epochs=3", "--set=space.width=64", "--set=space.depth=1", "--seeds=2",
)  # fmt: skip
LARGE_STEPS = ("--set=space.learning_rate={type: float, low: 2.0e-3, high: 8.0e-3, log: true}",)
"""For a checkpoint of random weights, which has more to learn than one that was trained."""
MARK = "AUTOML_NEWS_TEST"
"""Environment variable by which processes are found that the example has started, and those that these have."""


@pytest.fixture
def news_files(monkeypatch):
    monkeypatch.syspath_prepend(str(NEWS))
    return importlib.import_module("news_files")


@pytest.fixture
def example(news_files):
    for module in ("tokenizers", "fastapi", "uvicorn", "prometheus_client", "pydantic_settings"):
        optional.module(module)
    return importlib.import_module("run")


def check_what_is_printed(printed, seeds):
    for name in ("launch", "compare", "confirm", "promote", "serve-model"):
        assert f"$ automl {name} " in printed
    answers = re.findall(r"label (\S+) \(it is (\S+)\), confidence (\S+), probabilities (.*)", printed)
    assert {label for _, label, _, _ in answers} == {"World", "Sports", "Business", "Sci/Tech"}
    for label, _, confidence, listed in answers:
        probabilities = dict(one.rsplit(" ", 1) for one in listed.split(", "))
        assert probabilities[label] == confidence
        assert sum(map(float, probabilities.values())) == pytest.approx(1.0, abs=0.003)
    accuracy = re.search(rf"^test accuracy +([0-9.]+)% ± [0-9.]+%, {seeds} fresh seeds$", printed, re.MULTILINE)
    assert 60.0 < float(accuracy[1]) < 100.0  # chance is right in 25 %, and nobody can be in all
    one, two = re.search(r"^samples/s +(\S+) on one rank, (\S+) on two$", printed, re.MULTILINE).groups()
    efficiency, speed_up = re.search(
        r"^efficiency +(\d+)% of two ranks, (\S+) times the speed of one$", printed, re.MULTILINE
    ).groups()
    measured = float(two.replace(",", "")) / float(one.replace(",", ""))
    assert float(speed_up) == pytest.approx(measured, rel=0.05)
    assert float(efficiency) == pytest.approx(50 * measured, rel=0.05)
    assert float(re.search(r"^spent +\$(\S+) ", printed, re.MULTILINE)[1]) > 0


@pytest.fixture
def place(tmp_path, warm_pool):
    return Workplace(tmp_path, warm_pool)


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_it_goes_from_headlines_to_answers(example, news_files, place, monkeypatch, capsys):
    """All commands but the server's run in this process, on the pool that the tests share."""

    def run(*arguments, **_options):
        example.command(*arguments)
        return place.run(*arguments)

    monkeypatch.setattr(example, "run", run)
    monkeypatch.setattr(sys, "argv", ["run.py", f"--folder={place.folder}", *FEW])
    monkeypatch.setattr(news_files, "MADE_ROWS", {"train": 600, "test": 200})
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(place.folder)  # which the example leaves for another one
    example.main()
    check_what_is_printed(capsys.readouterr().out, seeds=2)
    assert not [one for one in psutil.Process().children(recursive=True) if "serve-model" in one.cmdline()]


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("is_fine_tuned", [False, True], ids=["from scratch", "fine-tuned"])
def test_one_command_does_it_all_and_leaves_no_process(is_fine_tuned, news_files, tmp_path):
    checkpoint = (f"--checkpoint={small_checkpoint(news_files, tmp_path)}", *LARGE_STEPS) if is_fine_tuned else ()
    done = subprocess.run(
        [sys.executable, NEWS / "run.py", f"--folder={tmp_path}", *FEW, *checkpoint], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), MARK: str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_what_is_printed(done.stdout, seeds=2)
    wait_until(lambda: not processes_of(tmp_path), "not all processes have ended")


def small_checkpoint(news_files, folder: Path) -> Path:
    """Write what one would download: a DistilBERT of one layer, its weights random, and its tokenizer."""
    import torch

    from trainers.tasks.words.tokens import PAD, train_tokenizer

    transformers = optional.module("transformers")
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    news_files.write(folder / "train.csv")
    tokenizer = train_tokenizer([text for _, text in rows_of(folder / "train.csv")], vocabulary=500, lowercase=True)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=128, dim=64, n_layers=1, n_heads=2,
        hidden_dim=128, initializer_range=0.2, pad_token_id=PAD,
    )  # fmt: skip
    transformers.DistilBertForSequenceClassification(config).save_pretrained(checkpoint)
    return checkpoint


def processes_of(folder: Path) -> list[list[str]]:
    """Command lines of the living processes that were started under a mark."""
    living = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(folder):
                living.append(process.cmdline())
        except psutil.Error:
            continue  # it has ended, or is somebody else's
    return living


def test_files_of_ag_news_form_and_of_two_columns_are_read(news_files, tmp_path):
    ag_news, pairs, written = tmp_path / "ag.csv", tmp_path / "pairs.tsv", tmp_path / "train.csv"
    ag_news.write_text('"3","Oil, again","He said ""no"" on Monday."\n"4","A chip","It is new."\n', encoding="utf-8")
    pairs.write_text('"a fine film\t1\nit drags , sadly\t0\n', encoding="utf-8")
    news_files.write(written, ag_news)
    assert rows_of(written) == [
        ["label", "text"], ["Business", 'Oil, again. He said "no" on Monday.'], ["Sci/Tech", "A chip. It is new."],
    ]  # fmt: skip
    news_files.write(written, pairs)
    assert rows_of(written) == [["label", "text"], ["1", '"a fine film'], ["0", "it drags , sadly"]]
    assert news_files.one_of_each(written) == [("1", '"a fine film'), ("0", "it drags , sadly")]


def test_made_headlines_are_the_same_each_time_and_those_of_the_test_part_are_others(news_files, tmp_path):
    first, again, test = tmp_path / "train.csv", tmp_path / "again" / "train.csv", tmp_path / "test.csv"
    again.parent.mkdir()
    for path in (first, again, test):
        news_files.write(path)
    assert first.read_bytes() == again.read_bytes()
    trained, tested = ({text for _, text in rows_of(path)} for path in (first, test))
    assert len(tested - trained) > 0.95 * len(tested)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("World,1,2,3\n", "row 1: found ['World', '1', '2', '3'], allowed: in all rows a class from 1 to 4"),
        ("1,a,b\n7,c,d\n", "row 2: found ['7', 'c', 'd'], allowed"),
        ("1,a,b\na,b\n", "row 2: found ['a', 'b'], allowed"),
        ("", "there are no rows. Write"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_of_another_form_is_one_line(tmp_path, content, words):
    train = tmp_path / "mine.csv"
    if content is not None:
        train.write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, NEWS / "run.py", f"--train={train}", f"--test={train}", f"--folder={tmp_path / 'out'}"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("news: ")
    assert words in done.stderr
    assert str(train) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["news", "distilbert"])
def test_its_specs_are_specs(name):
    assert parse_spec(yaml.safe_load((NEWS / f"{name}.yaml").read_text(encoding="utf-8"))).study == "news"


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))
