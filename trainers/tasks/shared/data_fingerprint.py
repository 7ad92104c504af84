"""A mark in the weights of a model, by which it knows the data that it was trained on."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn


class DataMark(nn.Module):
    """Refuses weights that belong to rows encoded in another way.

    What cells and tokens mean is learned from the training file each time a task is made. If that file has changed, a
    checkpoint or an exported model would take new numbers for old ones, and answer nonsense without a sign of it.
    """

    digest: Tensor

    def __init__(self, *meaning: object) -> None:
        """Remember what decides the encoding: values whose repr says all of it."""
        super().__init__()
        self.register_buffer("digest", torch.tensor(zlib.crc32(repr(meaning).encode())))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Add to the errors of `load_state_dict`, the last argument, if the marks differ."""
        loaded = state_dict.get(f"{prefix}digest")
        if loaded is not None and int(loaded) != int(self.digest):
            rest[-1].append(
                "the training data have changed since these weights were trained, and are encoded otherwise"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)
