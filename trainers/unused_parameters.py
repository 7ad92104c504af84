"""DDP whose error about parameters without a gradient is one line that names them, and the option that helps."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.protocol import TaskError

_UNUSED = re.compile(r".*did not receive grad for rank \d+: ([\d ]+).*", re.DOTALL)
_MOST_NAMES = 5


class NamingDDP(DistributedDataParallel):
    """DistributedDataParallel as it is, but for that error."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Pass a batch through.

        Raises:
            TaskError: Parameters had no gradient in the step before, which DDP has to be told.
        """
        try:
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if not is_about_unused(error):
                raise
            raise TaskError(unused_line(self.module, str(error))) from error


def is_about_unused(error: RuntimeError) -> bool:
    """Return whether an error is DDP's about parameters without a gradient."""
    return "find_unused_parameters" in str(error)


def unused_line(module: nn.Module, said: str) -> str:
    """Return DDP's error in one line that names the parameters."""
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    numbers = [int(number) for number in _UNUSED.sub(r"\1", said).split()] if _UNUSED.fullmatch(said) else []
    names = [trained[number] for number in numbers if number < len(trained)]
    which = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
    return (
        f"found find_unused_parameters false, but parameters had no gradient in a step: {which or 'unknown ones'}; "
        "take find_unused_parameters true, or remove them, or set their requires_grad to False"
    )
