"""How many numbers models of n-grams have. Does not import torch."""

from __future__ import annotations

BUCKETS = 2**15
"""Number of places that all n-grams of two tokens and more share; those that fall together are told apart by others.

The optimizer of a network goes over all of them in each step, which takes most of a step's time.
"""
MOST_WEIGHTS = 20_000_000
"""Most weights of TF-IDF: its optimizer keeps some twenty copies of them in double precision, 3 GB."""


def count_of(vocabulary: int, longest_ngram: int) -> int:
    """Return the number of different n-grams of up to `longest_ngram` of so many tokens, as they are told apart."""
    return vocabulary + (BUCKETS if longest_ngram > 1 else 0)


def fits_tfidf(vocabulary: int, classes: int) -> bool:
    """Return whether TF-IDF of n-grams of any length has few enough weights for so many tokens and classes."""
    return count_of(vocabulary, 2) * classes <= MOST_WEIGHTS
