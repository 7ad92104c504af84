"""The compiled forward pass of a model, which says so when torch stops compiling."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch

from trainers.protocol import TaskError

RECOMPILE_LIMIT = 64
"""Most variants of one piece of code in a trial. torch's own limit is 8; a loop over blocks that are left out of
compilation has one for each block.
"""

_COMPILERS = ("g++", "clang++", "c++")


class Compiled:
    """A function that torch compiles when it is called first, and again for inputs of another form.

    Beyond the limit of variants torch would go on without compiling, and say so in a worker's log only: time and cost
    of the trial would not be those of `compile: true`. So the trial fails.

    Args:
        function: The function.
        device: Device that it computes on.

    Raises:
        TaskError: There is no compiler; the message says what to do.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        _require_compiler(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13's own, of what its compiler imports
            self._function: Callable[..., Any] = torch.compile(function)
            from torch._dynamo import config, exc
        self._limit_was_hit = exc.FailOnRecompileLimitHit
        self._limit: Any = config.patch(recompile_limit=RECOMPILE_LIMIT, fail_on_recompile_limit_hit=True)

    def __call__(self, *args: Any) -> Any:
        """Call the function.

        Raises:
            TaskError: The limit of variants is reached.
        """
        try:
            with self._limit:  # 7 us
                return self._function(*args)
        except self._limit_was_hit as error:
            raise TaskError(
                f"found compile true, but the model needs more than {RECOMPILE_LIMIT} variants of compiled code, as "
                "where Python values that change from step to step decide what it computes; take compile false, or "
                "keep such values in tensors (TORCH_LOGS=recompiles names them)"
            ) from error

    def close(self) -> None:
        """Forget all compiled code of this process."""
        torch.compiler.reset()


def _require_compiler(device: torch.device) -> None:
    """Refuse `compile` where there is nothing to compile with.

    Raises:
        TaskError: There is no compiler; the message says what to do.
    """
    if device.type == "cuda":
        return
    given = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([given] if given else _COMPILERS)):
        looked = f"CXX={given}" if given else ", ".join(_COMPILERS)
        raise TaskError(
            f"found compile true, but there is no C++ compiler ({looked}); install one, set CXX, or take compile false"
        )
