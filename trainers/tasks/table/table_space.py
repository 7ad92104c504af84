"""Search space, first trials and baselines for tables."""

from collections.abc import Mapping
from typing import Any

from search_spaces.parameters import Categorical, Float, Int, Prior
from search_spaces.space import Space
from trainers.tasks.table.tree_growth import has_lightgbm

NETWORKS = ("mlp", "residual", "tabm")
ARCHITECTURES = (*NETWORKS, "trees")
_BATCHES = (16, 32, 64, 128, 256, 512)
_STEPS_AN_EPOCH = 20
_TREES: Mapping[str, Any] = {
    "architecture": "trees", "trees": 300, "tree_rate": 0.06, "leaves": 31, "leaf_rows": 20, "row_share": 0.8,
    "column_share": 0.8, "l2": 1.0,
}  # fmt: skip
_NETWORK: Mapping[str, Any] = {
    "architecture": "tabm", "learning_rate": 2e-3, "optimizer": "adamw", "weight_decay": 3e-4, "width": 128, "depth": 2,
    "dropout": 0.1, "embedding": 8, "bins": 16,
}  # fmt: skip
"""Parameters of networks for most tables, without the batch size, which depends on the rows."""


def tabular_space(rows: int) -> Space:
    """Return the search space for `rows` training rows, with priors for most tables."""
    network = {"architecture": list(NETWORKS)}
    space = {
        "learning_rate": Float(low=2e-4, high=5e-3, log=True, prior=_near(_NETWORK["learning_rate"])).when(**network),
        "batch_per_rank": Categorical(_batches(rows)).when(**network),
        "optimizer": Categorical(["adamw"]).when(**network),
        "weight_decay": Float(low=1e-5, high=1e-1, log=True, prior=_near(_NETWORK["weight_decay"])).when(**network),
        "width": Int(low=64, high=384, log=True, prior=_near(_NETWORK["width"])).when(**network),
        "depth": Int(low=1, high=4, prior=_near(_NETWORK["depth"])).when(**network),
        "dropout": Float(low=0.0, high=0.5, prior=_near(_NETWORK["dropout"])).when(**network),
        "embedding": Int(low=4, high=24, log=True, prior=_near(_NETWORK["embedding"])).when(**network),
        "bins": Categorical([0, 16, 48]).when(**network),
    }
    if not has_lightgbm():
        return Space({"architecture": Categorical(list(NETWORKS)), **space})
    trees = {"architecture": "trees"}
    return Space(
        {
            "architecture": Categorical(list(ARCHITECTURES)),
            **space,
            "trees": Int(low=100, high=1000, log=True, prior=_near(_TREES["trees"])).when(**trees),
            "tree_rate": Float(low=0.02, high=0.2, log=True, prior=_near(_TREES["tree_rate"])).when(**trees),
            "leaves": Int(low=8, high=96, log=True, prior=_near(_TREES["leaves"])).when(**trees),
            "leaf_rows": Int(low=2, high=100, log=True, prior=_near(_TREES["leaf_rows"])).when(**trees),
            "row_share": Float(low=0.5, high=1.0, prior=_near(_TREES["row_share"])).when(**trees),
            "column_share": Float(low=0.3, high=1.0, prior=_near(_TREES["column_share"])).when(**trees),
            "l2": Float(low=1e-2, high=20.0, log=True, prior=_near(_TREES["l2"])).when(**trees),
        }
    )


def tabular_first_trials(rows: int) -> list[dict[str, Any]]:
    """Return parameters for most tables: boosted trees, then an ensemble of MLPs."""
    network = {**_NETWORK, "batch_per_rank": _batches(rows)[-1]}
    return [dict(_TREES), network] if has_lightgbm() else [network]


def tabular_baselines() -> list[dict[str, Any]]:
    """Return the usual baseline, boosted trees, or [] without LightGBM."""
    return [{"name": "boosted trees with usual parameters", "params": dict(_TREES)}] if has_lightgbm() else []


def _near(value: float) -> Prior:
    return Prior(center=value, confidence="low")


def _batches(rows: int) -> list[int]:
    return [batch for batch in _BATCHES if batch * _STEPS_AN_EPOCH <= rows][-2:] or [_BATCHES[0]]
