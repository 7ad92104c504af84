"""Fingerprint of a task's encoding of data, stored with a model's weights."""

import zlib
from typing import Any

import torch
from torch import Tensor, nn


class DataMark(nn.Module):
    """Refuses to load weights that were trained on data with another encoding.

    Tasks learn the meaning of cells and tokens from the training file. If the file changes, old weights are wrong.
    """

    digest: Tensor

    def __init__(self, *meaning: object) -> None:
        super().__init__()
        self.register_buffer("digest", torch.tensor(zlib.crc32(repr(meaning).encode())))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """If the fingerprints differ, add an error to the errors of `load_state_dict`, the last argument."""
        loaded = state_dict.get(f"{prefix}digest")
        if loaded is not None and int(loaded) != int(self.digest):
            rest[-1].append(
                "the training data have changed since these weights were trained, and have another encoding"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)
