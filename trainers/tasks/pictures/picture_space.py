"""What the search varies in models of images."""

from __future__ import annotations

from typing import Any

from search_spaces.parameters import Categorical, Conditional, Float, Int, Parameter
from search_spaces.space import Space

COLOURS = 3
"""Channels of a colour image."""


def vision_space(shape: tuple[int, ...], *, has_checkpoint: bool) -> Space:
    """Return the search space for images, a smaller one for a checkpoint that is fine-tuned.

    Only colour images are mirrored, since digits and letters have a side.
    """
    channels, height, width = shape
    low, high = (5e-5, 1e-3) if has_checkpoint else (3e-4, 5e-3)
    trained: dict[str, Parameter | Conditional] = {
        "learning_rate": Float(low=low, high=high, log=True),
        "batch_per_rank": Categorical([16, 32, 64] if has_checkpoint else [32, 64, 128]),
        "optimizer": Categorical(["adamw"]),
        "weight_decay": Float(low=1e-5, high=1e-1, log=True),
    }
    network: dict[str, Parameter | Conditional] = {
        "architecture": Categorical(["cnn", "residual"]),
        "channels": Categorical([8, 16, 32]),
        "depth": Int(low=2, high=3),
    }
    changed: dict[str, Parameter | Conditional] = {
        "dropout": Float(low=0.0, high=0.5),
        "shift": Int(low=0, high=max(1, min(height, width) // 10)),
        "flip": Categorical([False, True] if channels == COLOURS else [False]),
        "operations": Categorical([0, 1, 2]),
        "magnitude": Float(low=0.1, high=0.6).when(operations=[1, 2]),
    }
    return Space({**trained, **({} if has_checkpoint else network), **changed})


def vision_first_trials(shape: tuple[int, ...], *, has_checkpoint: bool) -> list[dict[str, Any]]:
    """Return parameters of `vision_space` known to be good: a small convolutional network; none for a checkpoint."""
    if has_checkpoint:
        return []
    return [{
        "learning_rate": 3e-3, "batch_per_rank": 128, "optimizer": "adamw", "weight_decay": 0.05, "architecture": "cnn",
        "channels": 16, "depth": 2, "dropout": 0.3, "shift": 1, "flip": shape[0] == COLOURS, "operations": 0,
    }]  # fmt: skip
