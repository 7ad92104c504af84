"""The model of a table that a trial's parameters ask for."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from trainers.protocol import Params
from trainers.tasks.parts import options
from trainers.tasks.parts.boosted_trees import BoostedTrees
from trainers.tasks.parts.columns import Encoding, Matrix, bin_edges
from trainers.tasks.parts.tabular_network import TabularNetwork, Waves
from trainers.tasks.parts.tabular_space import ARCHITECTURES
from trainers.tasks.parts.tree_growth import TreeOptions


def tabular_model(
    params: Params,
    encoding: Encoding,
    rows: Matrix,
    *,
    levels: NDArray[np.bool_],
    outputs: int | None,
    target: object,
) -> nn.Module:
    """Return the model that `architecture` names; outputs [n, classes], or [n] standardised numbers.

    Args:
        params: Parameters of the trial.
        encoding: What the columns of a row are.
        rows: Training rows, from which bins are learned, [n, columns].
        levels: Which levels of the categories the rows have that this very model trains on, as `trained_levels` says.
        outputs: Number of classes; None for a number.
        target: What is learned, and its scale: weights are refused by a model of another one.

    Raises:
        TaskError: There is no such architecture.
    """
    architecture = options.choice(params.get("architecture", "mlp"), "architecture", ARCHITECTURES)
    meaning = (*encoding.meaning, target)
    sizes = [category.size for category in encoding.categories]
    if architecture == "trees":
        return BoostedTrees(
            dense=encoding.dense,
            category_sizes=sizes,
            outputs=outputs,
            options=TreeOptions.of(params),
            meaning=meaning,
        )
    bins, numbers = cast("int", params.get("bins", 16)), len(encoding.numbers)
    return TabularNetwork(
        dense=encoding.dense,
        category_sizes=sizes,
        levels=levels,
        edges=bin_edges(rows[:, :numbers], bins) if bins and numbers else None,
        waves=_waves(params, numbers),
        outputs=outputs,
        architecture=architecture,
        width=cast("int", params.get("width", 128)),
        depth=cast("int", params.get("depth", 2)),
        dropout=cast("float", params.get("dropout", 0.1)),
        embedding=cast("int", params.get("embedding", 8)),
        meaning=meaning,
    )


def _waves(params: Params, numbers: int) -> Waves | None:
    """Return the periodic embedding of the numbers, None where there is none."""
    waves = options.whole_parameter(params, "waves", 0, low=0, high=256)
    scale = options.number_parameter(params, "wave_scale", 0.1, low=1e-3, high=100.0)
    return Waves(numbers, waves, scale) if waves and numbers else None
