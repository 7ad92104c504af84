"""What all contestants share: images of digits, and a perceptron with one hidden layer."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

DATA = "SAME_MODEL_DATA"
"""Environment variable with the folder of MNIST's idx files; empty or missing stands for scikit-learn's digits."""
TRAINING, VALIDATION = 4000, 1000
"""Number of images of MNIST that are used; the digits are 1,797, of which every fifth is for validation."""


@cache
def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return inputs [n, pixels], standardised, and targets [n], to train on and to validate with."""
    folder = os.environ.get(DATA)
    inputs, targets = _mnist(Path(folder)) if folder else _digits()
    inputs = (inputs - inputs.mean()) / inputs.std()
    held = torch.zeros(len(targets), dtype=torch.bool)
    held[:: 5 if not folder else (TRAINING + VALIDATION) // VALIDATION] = True
    return (inputs[~held], targets[~held]), (inputs[held], targets[held])


def _mnist(folder: Path) -> tuple[Tensor, Tensor]:
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    used = TRAINING + VALIDATION
    return torch.tensor(pixels[:used], dtype=torch.float32), torch.tensor(labels[:used], dtype=torch.int64)


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Return the images as datasets, to train on and to validate with."""
    training, validation = images()
    return TensorDataset(*training), TensorDataset(*validation)


def network(width: int) -> nn.Sequential:
    """Return a perceptron with so many hidden units."""
    pixels = images()[0][0].shape[1]
    return nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, 10))
