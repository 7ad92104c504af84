"""What all contestants train: data, model, batch; and the form in which they hand in their times. Needs torch only."""

from __future__ import annotations

import json
import os
import socket
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CLASSES = 10
PIXELS = 28
MEAN, DEVIATION = 0.39, 0.23
HIDDEN = 128
BATCH_PER_RANK = 64
LEARNING_RATE = 0.05
MOMENTUM = 0.9
SAMPLES = int(os.environ.get("BENCHMARK_SAMPLES", "40000"))
EPOCHS = int(os.environ.get("BENCHMARK_EPOCHS", "2"))
WORKERS = int(os.environ.get("BENCHMARK_WORKERS", "0"))


def pictures() -> tuple[Tensor, Tensor]:
    """Return images, uint8 [n, 1, 28, 28], and classes, int64 [n]: noise with a brighter patch for each class."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    images = torch.randint(256, (SAMPLES, 1, PIXELS, PIXELS), generator=generator, dtype=torch.uint8)
    images[:, 0].view(SAMPLES, -1)[torch.arange(SAMPLES), classes * 60] = 255
    return images, classes


def tensors() -> tuple[Tensor, Tensor]:
    """Return all images normalised at once, float32 [n, 1, 28, 28], and classes, int64 [n]."""
    images, classes = pictures()
    return images.float().div_(255).sub_(MEAN).div_(DEVIATION), classes


class Images(Dataset[tuple[Tensor, Tensor]]):
    """The same, normalised one by one, as image datasets do it."""

    def __init__(self) -> None:
        self._images, self._classes = pictures()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image and its class."""
        return self._images[index].float().div(255).sub(MEAN).div(DEVIATION), self._classes[index]


def model() -> nn.Module:
    """Return a multilayer perceptron of 102,000 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS * PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


class Clock:
    """Waits for its turn before each epoch, and hands in afterwards what it took and how well it went.

    All contestants are alive at once and train an epoch each in turn, so that whatever else the machine does meets all
    of them. Each rank has a connection to `trainer.py`, and sleeps in a read while it is not its turn.
    """

    def __init__(self) -> None:
        self._connection = socket.create_connection(("127.0.0.1", int(os.environ["BENCHMARK_PORT"])))
        self._turns = self._connection.makefile("r")
        self._say({"name": os.environ["BENCHMARK_NAME"], "rank": int(os.environ["RANK"])})
        self._began = 0.0

    def start(self) -> None:
        """Wait for the turn; then an epoch begins."""
        if not self._turns.readline():
            raise SystemExit("the benchmark is over")
        self._began = time.perf_counter()

    def stop(self, loss: float, **more: float) -> None:
        """Its last step is done."""
        self._say({"seconds": time.perf_counter() - self._began, "loss": loss, **more})

    def _say(self, what: dict[str, object]) -> None:
        self._connection.sendall(f"{json.dumps(what)}\n".encode())
