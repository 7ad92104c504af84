"""The task `text`: columns, tokens, bad data, and that it learns; also from a checkpoint."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.task_files import metrics_of, real, trained, write
from trainers.contract.task_loading import TaskLoadError, load_task
from trainers.local.try_out_task import probe
from trainers.protocol import TaskError
from trainers.tasks.text import Text
from trainers.tasks.words.ngrams import NgramNetwork
from trainers.tasks.words.text_networks import _set_dropout
from trainers.tasks.words.tokens import MASK, PAD, UNKNOWN, train_tokenizer

GOOD_WORDS, BAD_WORDS = ("lovely", "brilliant", "moving", "funny"), ("awful", "dull", "boring", "clumsy")
FILLERS = ("the", "film", "was", "a", "story", "with", "some", "actors", "and", "music")
PARAMS = {"optimizer": "adamw", "learning_rate": 0.003, "batch_per_rank": 16, "width": 32, "heads": 2}


def reviews(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts with one telling word among fillers, and their label."""
    draw = random.Random(seed)
    rows = []
    for index in range(count):
        words = draw.choices(FILLERS, k=draw.randint(3, 12))
        words.insert(draw.randrange(len(words)), draw.choice(BAD_WORDS if index % 2 else GOOD_WORDS))
        rows.append((" ".join(words), "neg" if index % 2 else "pos"))
    return rows


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "reviews.tsv", reviews(400), "\t")


def test_the_tokenizer_cuts_words_and_is_learned_from_the_training_texts_only(file: str, tmp_path: Path) -> None:
    task = Text(file, vocabulary=300)
    rows = task.encode(["the film was lovely", "THE FILM WAS LOVELY", "the", "", "日本"])
    assert torch.equal(rows[0], rows[1])  # capitals are small letters
    assert (rows[2] != PAD).sum() == 1
    assert rows[3].tolist()[0] == UNKNOWN
    assert UNKNOWN in rows[4].tolist()
    assert int(rows.max()) < 300
    assert MASK not in rows
    train = write(tmp_path / "a.tsv", reviews(100), "\t")
    rows = [(f"{text} zebra zebra zebra", label) for text, label in reviews(20, seed=1)]
    task = Text(train, validation=write(tmp_path / "b.tsv", rows, "\t"), vocabulary=300)
    assert not any("zebra" in token for token in task._tokenizer.get_vocab())
    assert len(task.train_data({})[1]) == 100
    assert len(task.validation_data({})[1]) == 20


def test_columns_are_found_and_lone_quotation_marks_are_text(tmp_path: Path) -> None:
    rows = [(index, label, text) for index, (text, label) in enumerate(reviews(60))]
    by_looks = Text(write(tmp_path / "plain.csv", rows))
    assert (by_looks._text, by_looks._label) == ("column_2", "column_1")
    named = write(tmp_path / "named.csv", [("id", "mood", "words"), *rows])
    for text, label in (("words", "mood"), (2, 1), ("last", 1), ("auto", "auto")):
        task = Text(named, text, label)
        assert (task._text, task._label, task.classes) == ("words", "mood", ("neg", "pos"))
    rows = [(f'a " lone {text}', label) for text, label in reviews(40)]
    task = Text(write(tmp_path / "t.tsv", rows, "\t"))
    assert sum(len(part[1]) for part in task._parts.values()) == 40
    quoted = [(f'"{text}, and ""so"" on\nand on"', label) for text, label in reviews(40)]
    task = Text(write(tmp_path / "t.csv", [("text", "label"), *quoted]), "text", "label")
    assert sum(len(part[1]) for part in task._parts.values()) == 40
    assert task.classes == ("neg", "pos")


@pytest.mark.medium
def test_it_learns_and_long_texts_are_cut(file: str, tmp_path: Path) -> None:
    options = {"train": file, "test": write(tmp_path / "new.tsv", reviews(100, seed=1), "\t"), "longest": 16}
    task, trainer = trained("text", options, PARAMS, 10)
    assert isinstance(task, Text)
    assert metrics_of(task, trainer, "test")["val_accuracy"] > 0.9
    texts = ["the film was brilliant", "the film was boring " + "with some actors and music " * 50]
    rows = task.encode(texts)
    assert rows.shape == (2, 16)
    assert task.decode(trainer.module.eval()(rows)) == ["pos", "neg"]


def test_padding_changes_nothing_and_tokens_are_masked_only_while_training(file: str) -> None:
    task = Text(file)
    for pooling in ("mean", "max", "both"):
        model = task.model({"pooling": pooling, "width": 32, "depth": 2}).eval()
        short, both = task.encode(["the film"]), task.encode(["the film", "the film was a story with some actors"])
        assert both.shape[1] > short.shape[1]
        assert torch.allclose(model(short)[0], model(both)[0], atol=1e-5)
    task = Text(file)
    model = task.model({"token_dropout": 0.5, "dropout": 0.0, "width": 32})
    rows = task.encode(["the film was a story with some actors"])
    assert not torch.allclose(model(rows), model(rows))
    model.eval()
    assert torch.equal(model(rows), model(rows))


def test_weights_fit_the_task_and_the_probe_finds_nothing_wrong(file: str) -> None:
    task = Text(file)
    for params in ({"width": 32}, {"architecture": "ngrams"}, {"architecture": "tfidf"}):
        weights = task.model(params).state_dict()
        task.preprocessing()
        task.model(params).load_state_dict(weights)
    answer = probe("text", {"train": file}, [])
    assert answer["error"] is None
    assert answer["metrics"] == sorted(task.metric_names)
    assert {"val_accuracy", "val_error", "val_auroc"} <= set(answer["metrics"])
    task = Text(file)
    assert [one["architecture"] for one in task.first_trials()] == ["tfidf", "ngrams", "transformer"]
    for one in task.first_trials():
        task.space().check(one)


ROWS = "".join(f"{text}\t{label}\n" for text, label in reviews(40))
BAD: dict[str, tuple[str | bytes, dict[str, Any], tuple[str, ...]]] = {
    "empty": ("", {}, ("file is empty",)),
    "no such text column": (ROWS, {"text": "review"}, ("'review'", "task_options.text", "column_0, column_1")),
    "no such label column": (ROWS, {"label": 7}, ("7", "task_options.label")),
    "one column": ("a\nb\n", {}, ("only column", "delimiter")),
    "text and label are one": (ROWS, {"text": 1, "label": 1}, ("both text and label",)),
    "no text": ("".join(f"\t{index % 2}\n" for index in range(40)), {"text": 0, "label": 1}, ("is empty. Name",)),
    "no label": (ROWS + "nice\t\n", {"label": 1}, (": line 41", "no value")),
    "one label": ("good film\t1\nfine film\t1\nsome film\t1\n", {}, ("only label", "'1'")),
    "a class with one row": (ROWS + "so so\tmeh\n", {"label": 1}, (": line 41", "'meh'", "two rows")),
    "a short row": (ROWS + "nice\n", {}, (": line 41", "1 columns", "2")),
    "no utf-8": (ROWS.encode() + b"caf\xe9\tpos\n", {}, (": line 41", "0xe9")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data_is_one_line_that_names_the_place(what: str, tmp_path: Path) -> None:
    content, options, words = BAD[what]
    path = tmp_path / "bad.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TaskLoadError) as caught:
        load_task("text", {"train": str(path), **options})
    assert str(caught.value).startswith(f"task 'text': {path}")
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_other_classes_wrong_options_and_rows_that_are_no_texts_are_refused(file: str, tmp_path: Path) -> None:
    other = write(tmp_path / "new.tsv", [*reviews(4), ("hm", "meh")], "\t")
    with pytest.raises(TaskError, match=r"new\.tsv: line 5.*'meh'.*neg, pos"):
        Text(file, test=other)
    with pytest.raises(TaskError, match=r"task_options\.longest: found 0"):
        Text(file, longest=0)
    with pytest.raises(TaskError, match="heads: found 3, allowed: a divisor of the width, 32"):
        Text(file).model({"heads": 3, "width": 32})
    with pytest.raises(TaskError, match=r"no tokenizer\.json"):
        Text(file, checkpoint=str(tmp_path))
    task = Text(file)
    with pytest.raises(TaskError, match=r"^rows: row 2: found \{'text': 'dull'\}, allowed: a list of texts$"):
        task.encode(["lovely", {"text": "dull"}])  # type: ignore[list-item]
    other = write(tmp_path / "other.tsv", [("a", "b"), ("1", "lovely"), ("2", "dull")], "\t")
    with pytest.raises(TaskError, match=r"other\.tsv: found no column 'column_0', allowed: column_0$"):
        task.encode(other)


@pytest.mark.large
def test_sst2_is_read_whole_and_learns() -> None:
    options = {"train": real("sst2", "train.tsv"), "test": real("sst2", "test.tsv"), "longest": 32}
    task, trainer = trained("text", options, {"architecture": "tfidf"}, 3)
    sizes = [len(part[1]) for part in task._parts.values()]  # type: ignore[attr-defined]
    assert (sum(sizes[:2]), sizes[2]) == (6920, 1821)
    assert metrics_of(task, trainer, "test")["val_accuracy"] > 0.72


SIZES = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
}
"""Options of a tiny model, by architecture."""

EMBEDDINGS = {"gpt2": "transformer.wte.weight"}
"""Name of the token embeddings where it is not `ARCHITECTURE.embeddings.word_embeddings.weight`."""


@pytest.fixture(scope="module", params=sorted(SIZES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """An architecture, and the folder of a tiny checkpoint of it with random weights, as one would download it."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    architecture = request.param
    folder = tmp_path_factory.mktemp(f"tiny-{architecture}")
    tokenizer = train_tokenizer([text for text, _ in reviews(100)], vocabulary=200, lowercase=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        architecture, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, initializer_range=0.2,
        pad_token_id=PAD, bos_token_id=UNKNOWN, eos_token_id=UNKNOWN, **SIZES[architecture],
    )  # fmt: skip
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return architecture, str(folder)


@pytest.mark.large
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_checkpoint_is_fine_tuned_from_its_own_weights(file: str, checkpoint: tuple[str, str]) -> None:
    from safetensors.torch import load_file

    architecture, folder = checkpoint
    options = {"train": file, "checkpoint": folder, "longest": 32}
    task = load_task("text", options)
    model = task.model({})
    name = EMBEDDINGS.get(architecture, f"{architecture}.embeddings.word_embeddings.weight")
    assert torch.equal(model.state_dict()[f"network.{name}"], load_file(f"{folder}/model.safetensors")[name])
    assert all(module.training for module in model.modules())  # or the first epoch would have no dropout
    params = {"optimizer": "adamw", "learning_rate": 0.003, "batch_per_rank": 16}
    task, trainer = trained("text", options, params, 14)
    assert metrics_of(task, trainer, "validation")["val_accuracy"] > 0.85
    assert "width" not in task.space()  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_dropout_of_a_checkpoint_can_be_set_in_every_architecture(file: str, checkpoint: tuple[str, str]) -> None:
    architecture, folder = checkpoint
    task = Text(file, checkpoint=folder, longest=32)
    for dropout in (0.0, 0.37):
        model = task.model({"dropout": dropout})
        layers = {name: part.p for name, part in model.named_modules() if isinstance(part, torch.nn.Dropout)}
        own = {name: p for name, p in layers.items() if "att" not in name or name.endswith("output.dropout")}
        assert own, architecture
        assert set(own.values()) == {dropout}
    rows = task.encode(["the film was lovely"])
    drawn = [model(rows) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert torch.equal(*(model.eval()(rows) for _ in range(2)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_learning_rates_fall_from_the_last_layer_of_a_checkpoint_to_its_embeddings(file, checkpoint) -> None:
    architecture, folder = checkpoint
    options = {"train": file, "checkpoint": folder, "longest": 32}
    task = Text(file, checkpoint=folder, longest=32)
    model = task.model({})
    factors = task.rate_factors(model, {"layer_rate_decay": 0.5})
    embeddings = "network." + EMBEDDINGS.get(architecture, f"{architecture}.embeddings.word_embeddings.weight")
    assert factors[embeddings] == 0.25
    layer = [factor for name, factor in factors.items() if ".0." in name]
    assert layer
    assert set(layer) == {0.5}
    assert not [name for name in factors if "classif" in name or "score" in name or "ln_f" in name]
    assert task.rate_factors(model, {}) is None
    assert task.rate_factors(model, {"layer_rate_decay": 1.0}) is None
    assert "layer_rate_decay" in task.space()
    before = model.state_dict()[embeddings].clone()
    params = {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.1, "batch_per_rank": 16, "dropout": 0.0}
    moved = {}
    for decay in (1.0, 0.1):
        _, trainer = trained("text", options, params | {"layer_rate_decay": decay}, 1)
        moved[decay] = (trainer.module.state_dict()[embeddings] - before).norm().item()
    assert 0 < moved[0.1] < 0.1 * moved[1.0]


def test_a_decay_of_rates_needs_layers_and_a_dropout_an_architecture_that_has_one(file: str) -> None:
    task = Text(file)
    transformer, grams = task.model({"depth": 2}), task.model({"architecture": "ngrams"})
    factors = task.rate_factors(transformer, {"layer_rate_decay": 0.5})
    assert factors is not None
    assert factors["tokens.weight"] == 0.125
    assert factors["blocks.1.attention_in.weight"] == 0.5
    assert "head.weight" not in factors
    with pytest.raises(
        TaskError, match=r"^layer_rate_decay: found 0\.5, allowed: 1, since the model has no list of layers"
    ):
        task.rate_factors(grams, {"layer_rate_decay": 0.5})
    with pytest.raises(TaskError, match=r"^layer_rate_decay: found 1\.5, allowed: a number from 0\.01 to 1"):
        task.rate_factors(transformer, {"layer_rate_decay": 1.5})
    from transformers import LlamaConfig

    with pytest.raises(TaskError, match=r"^dropout: found 0\.2, but the architecture 'llama' .* Remove dropout from"):
        _set_dropout(LlamaConfig(), 0.2)


NGRAMS = {"architecture": "ngrams", "optimizer": "adamw", "learning_rate": 1e-3, "batch_per_rank": 32}


def test_n_grams_begin_as_naive_bayes_and_know_the_order_of_their_tokens(file: str) -> None:
    task = Text(file)
    tokens, targets = task.train_data({})
    network = task.model({**NGRAMS, "longest_ngram": 1, "width": 4}).eval()
    counts = torch.ones(2, task._tokenizer.get_vocab_size())
    for row, target in zip(tokens, targets, strict=True):
        counts[target, row[row != PAD].unique()] += 1
    shares = (counts / counts.sum(1, keepdim=True)).log()
    torch.testing.assert_close(network.vectors.weight[:, 4:], (shares - shares.mean(0)).T)
    network = Text(file).model({**NGRAMS, "longest_ngram": 3})
    assert isinstance(network, NgramNetwork)
    numbers, present = network._ngrams(torch.tensor([[5, 6, 7, PAD], [7, 6, 5, PAD]]))
    assert numbers.shape == present.shape == (2, 3 * 4)
    pairs = numbers[:, 4:8]
    assert len({*pairs[0, :2].tolist(), *pairs[1, :2].tolist()}) == 4
    assert present[0].view(3, 4).tolist() == [
        [True, True, True, False],
        [True, True, False, False],
        [True, False, False, False],
    ]


def test_n_grams_learn_and_padding_does_not_change_what_they_say(file: str) -> None:
    task, trainer = trained("text", {"train": file}, {**NGRAMS, "longest_ngram": 2}, 3)
    assert metrics_of(task, trainer, "validation")["val_accuracy"] > 0.9
    tokens = task.validation_data({})[0]
    longer = torch.cat([tokens, torch.full((len(tokens), 9), PAD)], dim=1)
    torch.testing.assert_close(trainer.module.eval()(longer), trainer.module(tokens))


@pytest.mark.parametrize("size", [0, 4, 2.0])
def test_n_grams_of_another_length_are_refused(file: str, size: object) -> None:
    with pytest.raises(TaskError, match=r"longest_ngram: found .*, allowed: a whole number from 1 to 3"):
        Text(file).model({**NGRAMS, "longest_ngram": size})
