"""A fingerprint of the training data's encoding, stored with a model's weights."""

import zlib
from typing import Any

import torch
from torch import Tensor, nn


class DataMark(nn.Module):
    """Refuses weights of a model whose data were encoded differently.

    The meaning of cells and tokens is learned from the training file whenever a task is made. After a change of that
    file, old weights would silently give wrong answers.
    """

    digest: Tensor

    def __init__(self, *meaning: object) -> None:
        super().__init__()
        self.register_buffer("digest", torch.tensor(zlib.crc32(repr(meaning).encode())))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Add to the errors of `load_state_dict`, the last argument, if the fingerprints differ."""
        loaded = state_dict.get(f"{prefix}digest")
        if loaded is not None and int(loaded) != int(self.digest):
            rest[-1].append(
                "the training data have changed since these weights were trained, and are encoded differently"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)
