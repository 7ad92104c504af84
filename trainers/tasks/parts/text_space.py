"""What the search varies in models of texts, and where it begins."""

from __future__ import annotations

from typing import Any

from search_spaces.parameters import Categorical, Float, Int
from search_spaces.space import Space

ARCHITECTURES = ("transformer", "ngrams")


def text_space(*, has_checkpoint: bool) -> Space:
    """Return the search space for texts, a smaller one for a published checkpoint that is fine-tuned."""
    if has_checkpoint:
        return Space(
            {
                "learning_rate": Float(low=1e-5, high=2e-4, log=True),
                "batch_per_rank": Categorical([16, 32]),
                "optimizer": Categorical(["adamw"]),
                "weight_decay": Float(low=1e-4, high=1e-1, log=True),
                "layer_rate_decay": Float(low=0.65, high=1.0),
            }
        )
    transformer = {"architecture": "transformer"}
    return Space(
        {
            "architecture": Categorical(list(ARCHITECTURES)),
            "learning_rate": Float(low=2e-4, high=4e-3, log=True),
            "batch_per_rank": Categorical([32, 64]),
            "optimizer": Categorical(["adamw"]),
            "weight_decay": Float(low=1e-4, high=3e-1, log=True),
            "width": Categorical([64, 128, 256]),
            "depth": Int(low=1, high=3).when(**transformer),
            "heads": Categorical([2, 4]).when(**transformer),
            "pooling": Categorical(["mean", "both"]).when(**transformer),
            "longest_ngram": Int(low=1, high=3).when(architecture="ngrams"),
            "dropout": Float(low=0.1, high=0.6),
            "token_dropout": Float(low=0.0, high=0.4),
        }
    )


def text_first_trials() -> list[dict[str, Any]]:
    """Return parameters known to be good: a bag of n-grams, the usual baseline, then a small transformer."""
    return [
        {
            "architecture": "ngrams", "learning_rate": 1e-3, "batch_per_rank": 32, "optimizer": "adamw",
            "weight_decay": 0.1, "width": 64, "longest_ngram": 1, "dropout": 0.5, "token_dropout": 0.2,
        },
        {
            "architecture": "transformer", "learning_rate": 1e-3, "batch_per_rank": 32, "optimizer": "adamw",
            "weight_decay": 0.1, "width": 64, "depth": 1, "heads": 4, "dropout": 0.4, "token_dropout": 0.2,
            "pooling": "mean",
        },
    ]  # fmt: skip


def text_baselines() -> list[dict[str, Any]]:
    """Return the usual baseline for texts, which a search has to beat."""
    return [{"name": "n-grams with usual parameters", "params": text_first_trials()[0]}]
