"""The form of what a task says about a batch: one value for each sample."""

from __future__ import annotations

from torch import Tensor

from trainers.protocol import TaskError


def per_sample(values: object, samples: int, what: str) -> Tensor:
    """Return `values` if it is a tensor of shape [samples].

    Raises:
        TaskError: It is not; the message says what it is instead.
    """
    if isinstance(values, Tensor) and values.shape == (samples,):
        return values
    found = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
    raise TaskError(f'{what} must have one value per sample, shape [{samples}], but is {found}; use reduction="none"')
