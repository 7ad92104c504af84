"""The task `language_model`: documents, tokens, sequences, and that it learns more than a table of pairs."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer_pool import run_trial
from trainers.contract.task_loading import TaskLoadError, load_task
from trainers.local.try_out_task import probe
from trainers.protocol import NoTestPartError, TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.tasks.language_model import LanguageModel
from trainers.tasks.words.tokens import END

WORDS = ("sun", "moon", "river", "stone", "small", "bright", "runs", "sleeps", "under", "the", "über", "水")
SMALL = {"width": 64, "depth": 2, "heads": 4, "dropout": 0.0}


def text(documents: int, words: int = 40, seed: int = 0) -> str:
    draw = random.Random(seed)
    return "\n\n".join(" ".join(draw.choices(WORDS, k=words)) for _ in range(documents))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "all.txt"
    path.write_text(text(60))
    return str(path)


def spec_of(options: dict[str, Any], params: dict[str, Any], world_size: int = 1, **training: Any) -> TrialSpec:
    return TrialSpec(
        study="t", trial=0, task="language_model", task_options=options, params={"optimizer": "adamw"} | params,
        training={"epochs": 1, "reference_batch": 16} | training, world_size=world_size,
    )  # fmt: skip


def test_sequences_are_the_texts_one_token_later_and_lose_nothing(file: str) -> None:
    task = LanguageModel(file, length=16, vocabulary=300)
    inputs, targets = task.train_data({})
    assert inputs.shape == targets.shape == (task.training_samples, 16)
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert (inputs[1:, 0] == targets[:-1, -1]).all(), "one goes on where the one before ends"
    whole = np.concatenate([inputs[0, :1], targets.flatten()])
    documents = [list(map(int, part)) for part in np.split(whole, np.flatnonzero(whole == END) + 1)]
    read = [task.tokenizer.decode(part) for part in documents[:-1]]
    assert set(read) <= set(text(60).split("\n\n"))
    assert len(read) == 53, "54 documents, of which the last is cut off"


def test_the_tokenizer_is_learned_from_the_training_texts_only(tmp_path: Path, file: str) -> None:
    other = tmp_path / "other.txt"
    other.write_text("zebra " * 300)
    task = LanguageModel(file, validation=str(other), length=16, vocabulary=400)
    assert not any("zebra" in token for token in task.tokenizer.get_vocab())
    assert task.encode(["zebra " * 20]).shape[1] == 16


def test_a_folder_of_few_documents_gives_the_end_of_each_for_validation(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "below").mkdir(exist_ok=True)
        (tmp_path / "below" / f"{number}.txt").write_text(text(1, words=400, seed=number))
    task = LanguageModel(str(tmp_path), length=16, vocabulary=300, validation_share=0.2, test_share=0.1)
    sizes = [len(part(_NOTHING)[0]) for part in (task.train_data, task.validation_data, task.test_data)]
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2] > 0
    with pytest.raises(NoTestPartError, match="there are no test texts"):
        LanguageModel(str(tmp_path), length=16, vocabulary=300).test_data({})


_NOTHING: dict[str, Any] = {}


def linked_text(documents: int, words: int = 60) -> str:
    """Texts whose next word is one of two, which the two words before it decide: one word alone says little."""
    draw = random.Random(0)
    after = {(first, second): draw.sample(WORDS, 2) for first in WORDS for second in WORDS}

    def document() -> str:
        said = draw.choices(WORDS, k=2)
        while len(said) < words:
            said.append(draw.choice(after[said[-2], said[-1]]))
        return " ".join(said)

    return "\n\n".join(document() for _ in range(documents))


@pytest.mark.large
def test_it_learns_more_than_a_table_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "linked.txt"
    path.write_text(linked_text(400))
    options: dict[str, Any] = {"train": str(path), "length": 32, "vocabulary": 300}
    task = load_task("language_model", options)
    assert isinstance(task, LanguageModel)
    best = table_of_pairs(task)
    params = SMALL | {"learning_rate": 0.015, "batch_per_rank": 8}
    done = run_trial(Group(), spec_of(options, params, epochs=4, warmup_epochs=0.5, clip_norm=1.0))
    metrics = done["measurements"][-1].metrics
    assert metrics["val_loss"] < best / 1.5
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["val_loss"]))
    assert metrics["tokens_per_second"] == pytest.approx(32 * metrics["samples_per_second"])


def table_of_pairs(task: LanguageModel) -> float:
    """The least validation loss, in nats a token, of tables of how often each token follows each other one.

    Each row is mixed with the frequencies of all tokens, as much as if these had been seen so many times.
    """
    tokens = task.tokenizer.get_vocab_size()
    (before, after), (held_before, held_after) = (
        [part.numpy().ravel() for part in parts] for parts in (task.train_data({}), task.validation_data({}))
    )
    counts = np.zeros((tokens, tokens))
    np.add.at(counts, (before, after), 1)
    alone = (counts.sum(axis=0) + 1) / (counts.sum() + tokens)
    losses = []
    for seen in (1, 5, 20, 50, 200):
        table = (counts + seen * alone) / (counts.sum(axis=1, keepdims=True) + seen)
        losses.append(-np.log(table[held_before, held_after]).mean())
    return min(losses)


def test_two_ranks_that_share_the_weights_out_train_the_same_model(ranks: Any, file: str) -> None:
    options = {"train": file, "length": 16, "vocabulary": 300}
    params = SMALL | {"width": 32, "learning_rate": 0.01}
    alone = run_trial(Group(), spec_of(options, params | {"batch_per_rank": 8}))
    more = {"shard": "full", "activation_checkpointing": True}
    shared = ranks.run(2, run_trial, spec_of(options, params | {"batch_per_rank": 4}, 2, **more))[0]
    mine, theirs = (done["measurements"][-1].metrics for done in (alone, shared))
    for name in ("val_loss", "train_loss", "perplexity", "val_token_accuracy"):
        assert theirs[name] == pytest.approx(mine[name], rel=1e-3)


def test_what_it_measures_is_what_it_declares_and_heads_divide_the_width(file: str) -> None:
    answer = probe("language_model", {"train": file, "length": 16, "vocabulary": 300}, [])
    assert answer["error"] is None
    assert answer["metrics"] == ["perplexity", "tokens_per_second", "val_token_accuracy"]
    with pytest.raises(TaskError, match="heads: found 3, allowed: a divisor of 32 / 2, half the width"):
        LanguageModel(file, length=16, vocabulary=300).model({"width": 32, "heads": 3})


WRONG = {
    "no file": ({"train": "no-such-file"}, "no-such-file: not readable as utf-8 text"),
    "no text": ({"train": "empty.txt"}, "empty.txt: no text found. Name"),
    "bytes": ({"train": "bytes.txt"}, "not readable as utf-8 text"),
    "no such files": ({"train": ".", "files": "*.tex"}, "no file in this folder matches '*.tex'"),
    "short": ({"train": "short.txt"}, "tokens of text for train are too few for length"),
    "length": ({"train": "short.txt", "length": 1}, "task_options.length: found 1"),
    "vocabulary": ({"train": "short.txt", "vocabulary": 100}, "task_options.vocabulary: found 100"),
    "share": ({"train": "short.txt", "validation_share": 0.9}, "task_options.validation_share: found 0.9"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n\n \n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "short.txt").write_text("a few words")
    options, words = WRONG[wrong]
    with pytest.raises(TaskLoadError) as caught:
        load_task("language_model", options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("files", ["../*.txt", "a/../../*.txt", "/etc/passwd"])
def test_a_pattern_that_leads_out_of_the_folder_is_refused(tmp_path: Path, files: str) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "secret.txt").write_text("secret words " * 50)
    with pytest.raises(TaskError, match="allowed: a pattern of files in the folder"):
        LanguageModel(train=str(tmp_path / "texts"), files=files)


def test_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "secret.txt").write_text("secret words " * 50)
    (tmp_path / "texts" / "link.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(TaskError, match="no file in this folder matches"):
        LanguageModel(train=str(tmp_path / "texts"))
