"""Errors on test rows, and how much of the error of an answer that looks at no input is gone."""

from __future__ import annotations

import numpy as np
import pandas as pd

from accuracy_parts.data_sets import TARGET, DataSet

Answers = np.ndarray


def error(data_set: DataSet, answers: Answers) -> float:
    """Share of wrong answers, or the mean squared error, on the test rows.

    Args:
        data_set: Data with a file of test rows.
        answers: Labels as text, or numbers; one for each test row.
    """
    truth = data_set.frames()[1][TARGET]
    if data_set.is_regression:
        return float(np.mean((truth.to_numpy() - np.asarray(answers, dtype=float)) ** 2))
    return float(np.mean(truth.astype(str).to_numpy() != np.asarray(answers).astype(str)))


def error_of_nothing(data_set: DataSet) -> float:
    """Test error of the most frequent class, or of the mean, of the training rows."""
    train, test = data_set.frames()
    target: pd.Series = train[TARGET]
    constant = target.mean() if data_set.is_regression else target.mode()[0]
    return error(data_set, np.repeat(constant, len(test)))


def score(of_model: float, of_nothing: float) -> float:
    """1 for no error, 0 for that of an answer which looks at no input: R squared, if the test mean were the mean."""
    return 1.0 - of_model / of_nothing
