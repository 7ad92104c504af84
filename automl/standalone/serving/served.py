"""Loads a model, and names its version."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..batches import Encoded, encoded
from ..model import Model, load, load_problem
from .errors import BrokenDeviceError, RequestError, ServeError
from .json_rows import UNPROCESSABLE

_SERVER_ERROR = 500
_BROKEN_DEVICE = "CUDA error"
"""Part of torch's messages for errors after which all CUDA calls fail, such as a kernel assertion."""


@dataclass(frozen=True, eq=False, slots=True)
class Served:
    """A loaded model."""

    model: Model
    version: str

    def answers(self, rows: Sequence[Encoded]) -> list[dict[str, Any]]:
        """Return each row's prediction."""
        return self.model.answered(rows)

    def refusal(self, error: Exception) -> RequestError:
        """Return the client's error after a failure of the model.

        Raw numbers may be invalid for the model, such as an unknown token. Other failures are server errors.
        """
        if _BROKEN_DEVICE in str(error):
            return BrokenDeviceError(_SERVER_ERROR, f"the model failed: {type(error).__name__}")
        is_memory = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
        if self.model.rows.kind == "array" and not is_memory:
            reason = " ".join(str(error).split())[:120]
            return RequestError(UNPROCESSABLE, f"rows: the model does not take these numbers ({reason})")
        return RequestError(_SERVER_ERROR, f"the model failed: {type(error).__name__}")


def load_served(path: str, version: str | None, device: str, *, trust: bool = False) -> Served:
    """Load a model and predict one row. Without `version`, `version_of` gives its version. Raises ServeError."""
    try:
        model = load(path, device, trust=trust)
        served = Served(model, version or version_of(model.manifest, path))
        shape = tuple(max(1, length) for length in model.rows.shape)
        served.answers([encoded(model.rows.dtype, shape, [0] * math.prod(shape))])
    except Exception as error:
        raise ServeError(load_problem(path, error)) from error
    return served


def version_of(manifest: Mapping[str, Any], path: str) -> str:
    """Return study, trial and epoch, as in `moons/2@6`, or the file name if the manifest lacks them."""
    parts = [manifest.get(name) for name in ("study", "trial", "epoch")]
    return Path(path).name if None in parts else f"{parts[0]}/{parts[1]}@{parts[2]}"
