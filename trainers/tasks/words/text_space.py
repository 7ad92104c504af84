"""Search spaces, first trials and baselines for texts.

In fine-tuning, learning rates may fall from the last layer to the first (Howard and Ruder 2018, arXiv 1801.06146,
section 3.2), by one factor as in Clark et al. 2020 (arXiv 2003.10555, appendix B).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.parameters import Categorical, Float, Int
from search_spaces.space import Space
from trainers.protocol import Params, TaskError
from trainers.tasks.shared import task_options

if TYPE_CHECKING:
    from torch import nn

LAYER_RATE_DECAY = "layer_rate_decay"
"""Ratio of a layer's learning rate to the rate of the layer above. 1 means equal rates."""


def layer_rate_factors(model: nn.Module, params: Params) -> dict[str, float] | None:
    """Return factors of the learning rate by parameter name; None for equal rates.

    Layers are the elements of the longest list of modules. With decay d, layer i of n (from 0) has the factor d^(n -
    i). Parameters before the layers, mostly embeddings, have d^(n + 1), parameters after the layers 1.
    """
    decay = task_options.number_parameter(params, LAYER_RATE_DECAY, 1.0, low=0.01, high=1.0)
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
    from torch import nn

    lists = [(name, len(one)) for name, one in model.named_modules() if isinstance(one, nn.ModuleList)]
    prefix, layers = max(lists, key=lambda each: each[1], default=("", 0))  # of equal lists, the outermost
    return f"{prefix}.", layers


BUCKETS = 2**15
"""Number of hash buckets for n-grams of two and more tokens. Updating them takes most of a step's time."""
MOST_WEIGHTS = 20_000_000
"""Limit for the weights of TF-IDF. The optimizer keeps about twenty copies in double precision: 3 GB."""


def count_of(vocabulary: int, longest_ngram: int) -> int:
    """Return the number of numbers for n-grams of up to `longest_ngram` tokens."""
    return vocabulary + (BUCKETS if longest_ngram > 1 else 0)


def fits_tfidf(vocabulary: int, classes: int) -> bool:
    """Return whether TF-IDF has at most `MOST_WEIGHTS` weights for n-grams of any length."""
    return count_of(vocabulary, 2) * classes <= MOST_WEIGHTS


NETWORKS = ("transformer", "ngrams")
ARCHITECTURES = (*NETWORKS, "tfidf")
_TFIDF: Mapping[str, Any] = {"architecture": "tfidf", "longest_ngram": 1, "l2": 1.0}
_NGRAMS: Mapping[str, Any] = {
    "architecture": "ngrams", "learning_rate": 1e-3, "batch_per_rank": 32, "optimizer": "adamw", "weight_decay": 0.1,
    "width": 64, "longest_ngram": 1, "dropout": 0.5, "token_dropout": 0.2,
}  # fmt: skip
_TRANSFORMER: Mapping[str, Any] = {
    "architecture": "transformer", "learning_rate": 1e-3, "batch_per_rank": 32, "optimizer": "adamw",
    "weight_decay": 0.1, "width": 64, "depth": 1, "heads": 4, "dropout": 0.4, "token_dropout": 0.2, "pooling": "mean",
}  # fmt: skip


def text_space(*, has_tfidf: bool) -> Space:
    """Return the search space for texts, with TF-IDF if `fits_tfidf`."""
    network, transformer = {"architecture": list(NETWORKS)}, {"architecture": "transformer"}
    space = {
        "learning_rate": Float(low=2e-4, high=4e-3, log=True).when(**network),
        "batch_per_rank": Categorical([32, 64]).when(**network),
        "optimizer": Categorical(["adamw"]).when(**network),
        "weight_decay": Float(low=1e-4, high=3e-1, log=True).when(**network),
        "width": Categorical([64, 128, 256]).when(**network),
        "depth": Int(low=1, high=3).when(**transformer),
        "heads": Categorical([2, 4]).when(**transformer),
        "pooling": Categorical(["mean", "both"]).when(**transformer),
        "dropout": Float(low=0.1, high=0.6).when(**network),
        "token_dropout": Float(low=0.0, high=0.4).when(**network),
    }
    if not has_tfidf:
        length = Int(low=1, high=3).when(architecture="ngrams")
        return Space({"architecture": Categorical(list(NETWORKS)), **space, "longest_ngram": length})
    return Space(
        {
            "architecture": Categorical(list(ARCHITECTURES)),
            **space,
            "longest_ngram": Int(low=1, high=3).when(architecture=["ngrams", "tfidf"]),
            "l2": Float(low=1e-2, high=10.0, log=True).when(architecture="tfidf"),
        }
    )


def checkpoint_space() -> Space:
    """Return the search space for fine-tuning a published checkpoint."""
    return Space(
        {
            "learning_rate": Float(low=1e-5, high=2e-4, log=True),
            "batch_per_rank": Categorical([16, 32]),
            "optimizer": Categorical(["adamw"]),
            "weight_decay": Float(low=1e-4, high=1e-1, log=True),
            "layer_rate_decay": Float(low=0.65, high=1.0),
        }
    )


def text_first_trials(*, has_tfidf: bool) -> list[dict[str, Any]]:
    """Return good parameters: the usual baseline, n-grams, a small transformer."""
    known = [_TFIDF, _NGRAMS, _TRANSFORMER] if has_tfidf else [_NGRAMS, _TRANSFORMER]
    return [dict(one) for one in known]


def text_baselines(*, has_tfidf: bool) -> list[dict[str, Any]]:
    """Return the usual baseline for texts: TF-IDF, or n-grams without TF-IDF."""
    if not has_tfidf:
        return [{"name": "n-grams with usual parameters", "params": dict(_NGRAMS)}]
    return [{"name": "TF-IDF with logistic regression", "params": dict(_TFIDF)}]
