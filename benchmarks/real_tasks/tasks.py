"""The tasks by name: a space as a user would write it, data from `--data`, and a training in one process."""

from __future__ import annotations

import csv
import gzip
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accuracy_parts.data_sets import TARGET, table
from torch import Tensor, nn

from real_tasks.networks import ACTIVATIONS, Epoch, Params, Parts, Trained, optimizing, size_of, wrong
from search_spaces.parameters import Categorical, Float, Int
from search_spaces.space import Space

Training = tuple[int, Iterator[Epoch]]
"""The number of weights, or of what else a model's size is, and its epochs."""


@dataclass(frozen=True, kw_only=True)
class RealTask:
    """A training whose curves are recorded; `metric` names what the validation part measures."""

    space: Space
    epochs: int
    metric: str
    train: Callable[[Path, Params, int, int], Training]


# ---------------------------------------------------------------------- data


@cache
def mnist(folder: Path, images: int = 2000) -> Parts:
    """Images to train, 3,000 to validate and 3,000 to test, at half their width [n, 1, 14, 14]."""

    def read(name: str, header: int) -> np.ndarray:
        with gzip.open(folder / "mnist" / f"{name}.gz") as file:
            return np.frombuffer(file.read(), dtype=np.uint8, offset=header)

    def part(name: str, start: int, end: int) -> tuple[Tensor, Tensor]:
        images = torch.tensor(read(f"{name}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)[start:end])
        labels = torch.tensor(read(f"{name}-labels-idx1-ubyte", 8)[start:end])
        return nn.functional.avg_pool2d(images.float() / 255, 2), labels.long()

    return {
        "train": part("train", 0, images),
        "val": part("train", images, images + 3000),
        "test": part("t10k", 0, 3000),
    }


@cache
def adult(folder: Path) -> Parts:
    """5,000 rows to train, 5,000 to validate and 8,000 to test; columns [n, 14], categories as numbers from 0 on."""
    columns, labels = [], []
    for name in ("adult-train.csv", "adult-test.csv"):
        for row in csv.reader((folder / "adult" / name).open(encoding="utf-8")):
            if len(row) == 15:
                columns.append([cell.strip() for cell in row[:14]])
                labels.append(">50K" in row[14])
    order = np.random.default_rng(0).permutation(len(columns))[:18000]
    table = np.zeros((len(order), 14), dtype=np.float32)
    for column in range(14):
        values = [columns[row][column] for row in order]
        if column in NUMBERS:
            numbers = np.log1p(np.array(values, dtype=np.float64))
            table[:, column] = (numbers - numbers.mean()) / numbers.std()
        else:
            index = {value: code for code, (value, _) in enumerate(Counter(values).most_common())}
            table[:, column] = [index[value] for value in values]
    x, y = torch.tensor(table), torch.tensor([labels[row] for row in order]).long()
    return {"train": (x[:5000], y[:5000]), "val": (x[5000:10000], y[5000:10000]), "test": (x[10000:], y[10000:])}


NUMBERS = (0, 2, 4, 10, 11, 12)
"""The columns of Adult that are numbers."""
MOST_WORDS, LONGEST = 4000, 24


@cache
def sentences(folder: Path) -> Parts:
    """4,000 sentences of SST-2 to train, 2,900 to validate and 1,800 to test, as word numbers [n, 24]; 0 is no word."""

    def read(name: str) -> list[tuple[list[str], int]]:
        lines = (folder / "sst2" / name).read_text(encoding="utf-8").splitlines()
        return [(line.rsplit("\t", 1)[0].split(), int(line.rsplit("\t", 1)[1])) for line in lines if "\t" in line]

    both, last = read("train.tsv"), read("test.tsv")
    both = [both[row] for row in np.random.default_rng(0).permutation(len(both))]
    counts = Counter(word for words, _ in both[:4000] for word in words)
    index = {word: code + 2 for code, (word, _) in enumerate(counts.most_common(MOST_WORDS))}

    def part(rows: list[tuple[list[str], int]]) -> tuple[Tensor, Tensor]:
        coded = [[index.get(word, 1) for word in words[:LONGEST]] + [0] * LONGEST for words, _ in rows]
        return torch.tensor([one[:LONGEST] for one in coded]), torch.tensor([label for _, label in rows])

    return {"train": part(both[:4000]), "val": part(both[4000:]), "test": part(last)}


@cache
def letters(folder: Path) -> Parts:
    """Windows of 48 letters of SST-2's sentences: 600 to train, 500 to validate, 500 to test; the next letters."""
    text = (folder / "sst2" / "train.tsv").read_text(encoding="utf-8").lower()
    kept = "abcdefghijklmnopqrstuvwxyz ,.'-\n"
    codes = torch.tensor([kept.index(letter) for letter in text if letter in kept][: 1600 * 49])
    rows = codes.reshape(1600, 49)[torch.randperm(1600, generator=torch.Generator().manual_seed(0))]
    x, y = rows[:, :-1], rows[:, 1:]
    return {"train": (x[:600], y[:600]), "val": (x[600:1100], y[600:1100]), "test": (x[1100:], y[1100:])}


@cache
def digits(_folder: Path) -> Parts:
    """700 images of scikit-learn's digits to train, 600 to validate and 497 to test [n, 64], with themselves."""
    from sklearn.datasets import load_digits

    x = torch.tensor(load_digits().data).float() / 16
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    return {
        name: (one, one) for name, one in zip(("train", "val", "test"), torch.split(x, [700, 600, 497]), strict=True)
    }


@cache
def digits_named(_folder: Path) -> Parts:
    """The same images as `digits` [n, 1, 8, 8], with their labels."""
    from sklearn.datasets import load_digits

    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    labels = torch.split(torch.tensor(load_digits().target).long()[order], [700, 600, 497])
    images = (x.reshape(-1, 1, 8, 8) for x, _ in digits(_folder).values())
    return dict(zip(("train", "val", "test"), zip(images, labels, strict=True), strict=True))


def _of_frame(frame: pd.DataFrame, y: Tensor, sizes: list[int]) -> Parts:
    """Shuffled rows of a table: numbers of mean 0 and deviation 1, text as numbers of categories from 0 on."""
    columns = [
        (values - values.mean()) / values.std() if pd.api.types.is_numeric_dtype(values) else pd.factorize(values)[0]
        for _, values in frame.items()
    ]
    x = torch.tensor(np.column_stack(columns)).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: sum(sizes)]
    split = zip(torch.split(x[order], sizes), torch.split(y[order], sizes), strict=True)
    return dict(zip(("train", "val", "test"), split, strict=True))


@cache
def diamonds(_folder: Path) -> Parts:
    """4,000 diamonds to train, 6,000 to validate and 6,000 to test [n, 9]; the log price, of mean 0 and deviation 1."""
    frame = table("diamonds")
    price = np.log(frame.pop(TARGET).to_numpy(dtype=np.float64))
    return _of_frame(frame, torch.tensor((price - price.mean()) / price.std()).float(), [4000, 6000, 6000])


@cache
def visits(_folder: Path) -> Parts:
    """4,000 people to train, 8,000 to validate and 8,000 to test [n, 9]; how often they saw a doctor."""
    frame = table("visits")
    counts = torch.tensor(frame.pop(TARGET).to_numpy(dtype=np.float64)).float()
    return _of_frame(frame, counts, [4000, 8000, 8000])


# ---------------------------------------------------------------------- trainings


def image_network(parts: Parts, params: Params, epochs: int, seed: int) -> Training:
    """Convolutions with pooling after each, and a linear layer."""
    torch.manual_seed(seed)
    pool = nn.AvgPool2d(2) if params.get("pool") == "mean" else nn.MaxPool2d(2)
    layers: list[nn.Module] = []
    channels, side = 1, parts["train"][0].shape[-1]
    for _ in range(params["layers"]):
        wider = params["width"] if channels == 1 else min(2 * channels, 64)
        layers += [nn.Conv2d(channels, wider, params["kernel"], padding=params["kernel"] // 2)]
        layers += [nn.BatchNorm2d(wider)] if params["normalize"] else []
        layers += [ACTIVATIONS[params["activation"]](), pool]
        channels, side = wider, side // 2
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(params["dropout"]), nn.Linear(channels * side * side, 10))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=params.get("label_smoothing", 0.0))

    return size_of(model), Trained(model, params, parts, epochs=epochs, seed=seed, loss=loss, metric=wrong)


def mnist_cnn(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """Convolutions on MNIST."""
    return image_network(mnist(folder), params, epochs, seed)


def mnist_large_cnn(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """Convolutions on six times as many images."""
    return image_network(mnist(folder, 12000), params, epochs, seed)


def digits_cnn(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """Convolutions on scikit-learn's digits."""
    return image_network(digits_named(folder), params, epochs, seed)


class TableNetwork(nn.Module):
    """Embeddings of categories beside numbers, and layers of one width.

    Args:
        numbers: The columns that are numbers; all others are categories.
    """

    def __init__(self, params: Params, parts: Parts, numbers: Sequence[int], outputs: int) -> None:
        super().__init__()
        everything = torch.cat([x for x, _ in parts.values()])
        self.numbers = list(numbers)
        self.categories = [column for column in range(everything.shape[1]) if column not in numbers]
        levels = [int(everything[:, column].max()) + 1 for column in self.categories]
        self.embeddings = nn.ModuleList(nn.Embedding(count, params["embedding"]) for count in levels)
        layers: list[nn.Module] = []
        wide = len(numbers) + params["embedding"] * len(levels)
        for _ in range(params["layers"]):
            layers += [nn.Linear(wide, params["width"])]
            layers += [nn.BatchNorm1d(params["width"])] if params["normalize"] else []
            layers += [ACTIVATIONS[params["activation"]](), nn.Dropout(params["dropout"])]
            wide = params["width"]
        self.layers = nn.Sequential(*layers, nn.Linear(wide, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for rows [n, columns]: [n, outputs]."""
        codes = x[:, self.categories].long()
        embedded = [one(codes[:, column]) for column, one in enumerate(self.embeddings)]
        scores: Tensor = self.layers(torch.cat([x[:, self.numbers], *embedded], dim=1))
        return scores


def adult_network(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """A network on Adult."""
    torch.manual_seed(seed)
    parts = adult(folder)
    model = TableNetwork(params, parts, NUMBERS, outputs=2)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=params["label_smoothing"])

    return size_of(model), Trained(model, params, parts, epochs=epochs, seed=seed, loss=loss, metric=wrong)


def diamonds_network(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """A network that estimates the log price of diamonds; its metric is the mean absolute error."""
    torch.manual_seed(seed)
    parts = diamonds(folder)
    model = TableNetwork(params, parts, [0, *range(4, 9)], outputs=1)
    kinds = {"squared": nn.functional.mse_loss, "absolute": nn.functional.l1_loss}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if params["loss"] == "huber":
            return nn.functional.huber_loss(outputs[:, 0], targets, delta=params["delta"])
        return kinds[params["loss"]](outputs[:, 0], targets)

    def metric(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).abs()

    return size_of(model), Trained(model, params, parts, epochs=epochs, seed=seed, loss=loss, metric=metric)


ROUNDS = 10
"""Rounds of boosting that count as an epoch."""


TREES = {"learning_rate": "lr", "num_leaves": "leaves", "min_data_in_leaf": "rows_per_leaf", "lambda_l2": "l2",
         "lambda_l1": "l1", "max_bin": "bins", "feature_fraction": "columns"}  # fmt: skip
"""LightGBM's names of parameters, and ours."""


def boosted(
    parts: Parts,
    given: dict[str, Any],
    categories: list[int],
    metric: Callable[[np.ndarray, np.ndarray], np.ndarray],
    epochs: int,
) -> Iterator[Epoch]:
    """Boosted trees; an epoch is `ROUNDS` rounds.

    Args:
        given: LightGBM's parameters.
        categories: The columns that are categories.
        metric: Function of raw scores [n] and targets [n] of a part, for each row [n]; smaller is better.
    """
    import lightgbm

    rows = {name: (x.numpy(), y.numpy()) for name, (x, y) in parts.items()}
    data = lightgbm.Dataset(*rows["train"], categorical_feature=categories, params={"max_bin": given["max_bin"]})
    began = time.process_time()
    booster = lightgbm.Booster({**given, "num_threads": 1, "verbose": -1, "deterministic": True}, data)
    scores = {name: np.zeros(len(rows[name][1])) for name in ("val", "test")}
    for epoch in range(epochs):
        for _ in range(ROUNDS):
            booster.update()
        for name in scores:
            scores[name] += booster.predict(
                rows[name][0], raw_score=True, start_iteration=epoch * ROUNDS, num_iteration=ROUNDS
            )
        values = [float(metric(scores[name], rows[name][1]).mean()) for name in ("val", "test")]
        yield time.process_time() - began, values[0], values[1]


def adult_trees(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """Boosted trees on Adult."""
    given = {theirs: params[ours] for theirs, ours in TREES.items()} | {"objective": "binary", "seed": seed}
    given |= {"extra_trees": params["split"] == "random", "data_sample_strategy": params["sampling"]}
    if params["sampling"] == "bagging":
        given |= {"bagging_fraction": params["rows"], "bagging_freq": 1}
    categories = [column for column in range(14) if column not in NUMBERS] if params["categories"] == "native" else []
    curve = boosted(adult(folder), given, categories, lambda scores, y: (scores > 0) != y, epochs)
    return params["leaves"], curve


def visits_trees(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """Boosted trees that estimate visits to doctors; their metric is the mean absolute error."""
    given = {theirs: params[ours] for theirs, ours in TREES.items() if ours in params}
    given |= {"objective": params["loss"], "max_depth": params["depth"], "max_bin": 255, "seed": seed}
    given |= {theirs: params[ours] for theirs, ours in (("alpha", "delta"), ("tweedie_variance_power", "power"))
              if ours in params}  # fmt: skip
    given |= {"bagging_fraction": params["rows"], "bagging_freq": 1, "extra_trees": params["split"] == "random"}
    is_logarithm = params["loss"] in {"poisson", "tweedie"}

    def metric(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
        off: np.ndarray = np.abs((np.exp(scores) if is_logarithm else scores) - y)
        return off

    return params["leaves"], boosted(visits(folder), given, [], metric, epochs)


class SentenceNetwork(nn.Module):
    """Word vectors; then their mean, convolutions with maxima, or a recurrence; then two scores."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.kind, width = params["model"], params["width"]
        self.embedding = nn.Embedding(MOST_WORDS + 2, params["embedding"], padding_idx=0)
        self.dropout = nn.Dropout(params["dropout"])
        if self.kind == "cnn":
            self.body: nn.Module = nn.Conv1d(params["embedding"], width, params["kernel"], padding=2)
        elif self.kind == "gru":
            self.body = nn.GRU(params["embedding"], width, batch_first=True)
        else:
            self.body = nn.Linear(params["embedding"], width)
        self.activation = ACTIVATIONS[params["activation"]]()
        self.scores = nn.Linear(width, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the two classes [n, 2]."""
        vectors, is_word = self.dropout(self.embedding(words)), (words > 0).float()
        if self.kind == "cnn":
            pooled = self.activation(self.body(vectors.transpose(1, 2))).amax(dim=2)
        elif self.kind == "gru":
            pooled = self.body(vectors)[0].amax(dim=1)
        else:
            mean = (vectors * is_word[:, :, None]).sum(dim=1) / is_word.sum(dim=1, keepdim=True).clamp(min=1)
            pooled = self.activation(self.body(mean))
        scores: Tensor = self.scores(self.dropout(pooled))
        return scores


def sentence_network(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """A network on sentences with a mood."""
    torch.manual_seed(seed)
    model = SentenceNetwork(params)
    return size_of(model), Trained(
        model, params, sentences(folder), epochs=epochs, seed=seed, loss=nn.functional.cross_entropy, metric=wrong
    )


class LetterNetwork(nn.Module):
    """The next letter by a recurrence or by attention to the letters before."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.kind, width = params["model"], 8 * params["width"]
        self.embedding = nn.Embedding(32, width)
        self.place = nn.Parameter(0.02 * torch.randn(48, width))
        if self.kind == "attention":
            layer = nn.TransformerEncoderLayer(
                width, params["heads"], 2 * width, params["dropout"], batch_first=True, norm_first=True
            )
            self.body: nn.Module = nn.TransformerEncoder(layer, params["layers"], enable_nested_tensor=False)
        else:
            between = params["dropout"] if params["layers"] > 1 else 0.0
            self.body = nn.GRU(width, width, params["layers"], batch_first=True, dropout=between)
        self.scores = nn.Linear(width, 32)

    def forward(self, codes: Tensor) -> Tensor:
        """Scores of the next letter at each place [n, 32, places]."""
        x = self.embedding(codes) + self.place
        if self.kind == "attention":
            x = self.body(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)
        else:
            x = self.body(x)[0]
        scores: Tensor = self.scores(x).transpose(1, 2)
        return scores


def letter_network(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """A small language model of letters; its metric is the mean loss of a letter in nats."""
    torch.manual_seed(seed)
    model = LetterNetwork(params)

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none").mean(dim=1)

    return size_of(model), Trained(
        model, params, letters(folder), epochs=epochs, seed=seed, loss=nn.functional.cross_entropy, metric=losses
    )


def digits_autoencoder(folder: Path, params: Params, epochs: int, seed: int) -> Training:
    """A deep autoencoder of one shape: all parameters but one are the optimizer's."""
    torch.manual_seed(seed)
    widths, layers = (64, 96, 48, 8, 48, 96, 64), []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), ACTIVATIONS[params["activation"]]()]
    model = nn.Sequential(*layers[:-1])

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(dim=1)

    return size_of(model), Trained(
        model, params, digits(folder), epochs=epochs, seed=seed, loss=nn.functional.mse_loss, metric=losses
    )


KINDS = list(ACTIVATIONS)
TASKS: dict[str, RealTask] = {
    "mnist_cnn": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "rmsprop"),
            "width": Int(low=4, high=32, log=True),
            "layers": Int(low=1, high=3),
            "kernel": Categorical([3, 5]),
            "normalize": Categorical([True, False]),
            "dropout": Float(low=0.0, high=0.7),
            "activation": Categorical(KINDS),
        }),
        epochs=12, metric="error", train=mnist_cnn,
    ),
    "adult_network": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "adamw"),
            "width": Int(low=16, high=256, log=True),
            "layers": Int(low=1, high=4),
            "embedding": Int(low=2, high=16, log=True),
            "normalize": Categorical([True, False]),
            "dropout": Float(low=0.0, high=0.6),
            "activation": Categorical(KINDS),
            "label_smoothing": Float(low=0.0, high=0.3),
        }),
        epochs=15, metric="error", train=adult_network,
    ),
    "adult_trees": RealTask(
        space=Space({
            "lr": Float(low=0.005, high=0.5, log=True),
            "leaves": Int(low=4, high=128, log=True),
            "rows_per_leaf": Int(low=1, high=200, log=True),
            "columns": Float(low=0.2, high=1.0),
            "l1": Float(low=1e-3, high=30.0, log=True),
            "l2": Float(low=1e-3, high=30.0, log=True),
            "bins": Int(low=15, high=255, log=True),
            "split": Categorical(["best", "random"]),
            "categories": Categorical(["native", "number"]),
            "sampling": Categorical(["bagging", "goss"]),
            "rows": Float(low=0.2, high=1.0).when(sampling="bagging"),
        }),
        epochs=20, metric="error", train=adult_trees,
    ),
    "digits_cnn": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "adamw", batch=(8, 256)),
            "width": Int(low=4, high=64, log=True),
            "layers": Int(low=1, high=3),
            "kernel": Categorical([1, 3, 5]),
            "pool": Categorical(["max", "mean"]),
            "normalize": Categorical([True, False]),
            "dropout": Float(low=0.0, high=0.6),
            "activation": Categorical(KINDS),
            "label_smoothing": Float(low=0.0, high=0.2),
            "schedule": Categorical(["constant", "cosine", "linear"]),
        }),
        epochs=20, metric="error", train=digits_cnn,
    ),
    "diamonds_network": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "rmsprop", batch=(32, 1024)),
            "width": Int(low=8, high=256, log=True),
            "layers": Int(low=1, high=5),
            "embedding": Int(low=1, high=8, log=True),
            "normalize": Categorical([True, False]),
            "dropout": Float(low=0.0, high=0.5),
            "activation": Categorical(KINDS),
            "loss": Categorical(["squared", "absolute", "huber"]),
            "delta": Float(low=0.01, high=1.0, log=True).when(loss="huber"),
        }),
        epochs=15, metric="loss", train=diamonds_network,
    ),
    "visits_trees": RealTask(
        space=Space({
            "lr": Float(low=0.003, high=0.3, log=True),
            "leaves": Int(low=3, high=255, log=True),
            "depth": Int(low=2, high=12),
            "rows_per_leaf": Int(low=2, high=300, log=True),
            "columns": Float(low=0.3, high=1.0),
            "rows": Float(low=0.3, high=1.0),
            "l1": Float(low=1e-4, high=10.0, log=True),
            "l2": Float(low=1e-4, high=10.0, log=True),
            "split": Categorical(["best", "random"]),
            "loss": Categorical(["regression", "huber", "poisson", "tweedie"]),
            "delta": Float(low=0.1, high=10.0, log=True).when(loss="huber"),
            "power": Float(low=1.05, high=1.95).when(loss="tweedie"),
        }),
        epochs=20, metric="loss", train=visits_trees,
    ),
    "sentences": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "adamw"),
            "model": Categorical(["mean", "cnn", "gru"]),
            "kernel": Int(low=1, high=5).when(model="cnn"),
            "embedding": Int(low=8, high=96, log=True),
            "width": Int(low=8, high=96, log=True),
            "dropout": Float(low=0.0, high=0.7),
            "activation": Categorical(KINDS),
            "schedule": Categorical(["constant", "cosine", "linear"]),
        }),
        epochs=12, metric="error", train=sentence_network,
    ),
    "letters": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "adamw", batch=(8, 128)),
            "model": Categorical(["attention", "gru"]),
            "heads": Categorical([1, 2, 4, 8]).when(model="attention"),
            "width": Int(low=1, high=8, log=True),
            "layers": Int(low=1, high=3),
            "dropout": Float(low=0.0, high=0.5),
            "schedule": Categorical(["constant", "cosine", "linear"]),
            "warmup": Float(low=0.0, high=0.3),
            "clip": Float(low=0.1, high=10.0, log=True),
        }),
        epochs=12, metric="loss", train=letter_network,
    ),
    "autoencoder": RealTask(
        space=Space({
            **optimizing("sgd", "adam", "adamw", "rmsprop", batch=(8, 256)),
            "beta1": Float(low=0.5, high=0.99).when(optimizer=["adam", "adamw"]),
            "beta2": Float(low=0.9, high=0.9999).when(optimizer=["adam", "adamw"]),
            "epsilon": Float(low=1e-9, high=1e-2, log=True).when(optimizer=["adam", "adamw"]),
            "schedule": Categorical(["constant", "cosine", "linear"]),
            "warmup": Float(low=0.0, high=0.3),
            "clip": Float(low=0.01, high=10.0, log=True),
            "activation": Categorical(KINDS),
        }),
        epochs=25, metric="loss", train=digits_autoencoder,
    ),
}  # fmt: skip
