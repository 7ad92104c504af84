"""Handwritten digits of 8 x 8 pixels: 1,797 images from scikit-learn, without a download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainers.contract.task import BaseTask, Params

if TYPE_CHECKING:
    from torch import Tensor, nn

    from search_spaces.space import Space

_CLASSES = 10
_SPLIT_SEED = 0
_PARTS = 6  # number of parts of each digit's images: one for validation, one for testing, four for training


class Digits(BaseTask):
    """Classifies digits with a multilayer perceptron or a small convolutional network; no BatchNorm, no dropout."""

    parameters = ("architecture", "width", "depth", "channels")
    metric_names: tuple[str, ...] = ("val_error", "val_accuracy")

    def train_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return 1,197 images, float32 [n, 64] of mean 0 and deviation 1, and their digits, int64 [n]."""
        return _split()[0]

    def validation_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return 300 other images, as `train_data` does."""
        return _split()[1]

    def test_data(self, _params: Params) -> tuple[Tensor, Tensor]:  # noqa: PT019 - no test of pytest
        """Return the last 300 images, as `train_data` does."""
        return _split()[2]

    def model(self, params: Params) -> nn.Module:
        """Return the network `architecture` with 10 outputs."""
        if params.get("architecture", "mlp") == "cnn":
            return _cnn(cast("int", params.get("channels", 16)))
        return _mlp(cast("int", params.get("width", 64)), cast("int", params.get("depth", 1)))

    def postprocessing(self) -> dict[str, Any]:
        """Describe the outputs as plain values: logits of the digits 0 to 9."""
        return {"kind": "classes", "labels": list(map(str, range(_CLASSES)))}

    def space(self) -> Space:
        """Return the default search space. Learning rates are for `reference_batch` samples per step."""
        from search_spaces.parameters import Categorical, Float, Int
        from search_spaces.space import Space

        return Space(
            {
                "learning_rate": Float(low=1e-3, high=1.0, log=True),
                "batch_per_rank": Int(low=16, high=128, log=True),
                "world_size": Categorical([1, 2]),
                "optimizer": Categorical(["sgd", "adamw"]),
                "momentum": Float(low=0.0, high=0.99).when(optimizer="sgd"),
                "weight_decay": Float(low=1e-6, high=1e-2, log=True),
                "architecture": Categorical(["mlp", "cnn"]),
                "width": Int(low=32, high=256, log=True).when(architecture="mlp"),
                "depth": Int(low=1, high=3).when(architecture="mlp"),
                "channels": Int(low=8, high=32, log=True).when(architecture="cnn"),
            }
        )


def _mlp(width: int, depth: int) -> nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    for inputs in [64, *[width] * (depth - 1)]:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, _CLASSES))


def _cnn(channels: int) -> nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, channels, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, _CLASSES),
    )


@cache
def _split() -> tuple[tuple[Tensor, Tensor], ...]:
    import numpy as np
    import torch

    table = _table()
    images, digits = torch.tensor(table[:, :-1], dtype=torch.float32), torch.tensor(table[:, -1], dtype=torch.int64)
    shuffled = np.random.default_rng(_SPLIT_SEED).permutation(len(table))
    by_digit = shuffled[np.argsort(table[shuffled, -1], kind="stable")]
    part = np.arange(len(table)) % _PARTS
    rows = [torch.from_numpy(by_digit[chosen]) for chosen in (part > 1, part == 0, part == 1)]
    mean, deviation = images[rows[0]].mean(), images[rows[0]].std()
    return tuple(((images[row] - mean) / deviation, digits[row]) for row in rows)


def _table() -> Any:
    """Return an array [1797, 65]: the 64 pixels of each image, from 0 to 16, and its digit."""
    # Importing scikit-learn's loader takes 1.4 s in every rank, reading its file 0.02 s.
    import numpy as np

    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    return np.column_stack(load_digits(return_X_y=True))
