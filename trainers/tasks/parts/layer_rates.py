"""Learning rates that fall from a model's last layer to its first, for fine-tuning.

Howard and Ruder 2018 (arXiv 1801.06146, section 3.2) call them discriminative fine-tuning; the form with one factor is
that of Clark et al. 2020 (arXiv 2003.10555, appendix B).
"""

from __future__ import annotations

from torch import nn

from trainers.protocol import Params, TaskError
from trainers.tasks.parts import options

LAYER_RATE_DECAY = "layer_rate_decay"
"""Parameter of a trial: learning rate of a layer over that of the layer above it; 1 is one rate for all."""


def layer_rate_factors(model: nn.Module, params: Params) -> dict[str, float] | None:
    """Return multiples of the learning rate, by names of parameters; None where all layers have the same.

    The layers are the longest list of modules within the model. With decay d, layer i of n, counted from 0, has
    d^(n - i); what is registered before the layers, embeddings as a rule, has d^(n + 1); what comes after them has 1.

    Raises:
        TaskError: The decay is out of bounds, or the model has no layers.
    """
    decay = options.number_parameter(params, LAYER_RATE_DECAY, 1.0, low=0.01, high=1.0)
    if decay == 1:
        return None
    prefix, layers = _layers(model)
    if not layers:
        raise TaskError(f"{LAYER_RATE_DECAY}: found {decay:g}, allowed: 1, since the model has no list of layers")
    factors: dict[str, float] = {}
    has_come = False
    for name, _ in model.named_parameters():
        if name.startswith(prefix):
            has_come = True
            factors[name] = decay ** (layers - int(name.removeprefix(prefix).partition(".")[0]))
        elif not has_come:
            factors[name] = decay ** (layers + 1)
    return factors


def _layers(model: nn.Module) -> tuple[str, int]:
    """Return the prefix of the layers' names, and their number; 0 where there are none."""
    lists = [(name, len(one)) for name, one in model.named_modules() if isinstance(one, nn.ModuleList)]
    prefix, layers = max(lists, key=lambda each: each[1], default=("", 0))  # of equal ones the first, the outermost
    return f"{prefix}.", layers
