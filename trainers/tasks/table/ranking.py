"""Ranks the rows of each query, and evaluates rankings by NDCG. Shapes: n rows."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from torch import Tensor

from trainers.protocol import TaskError
from trainers.tasks.shared.class_metrics import SeenSamples
from trainers.tasks.shared.split_task import Rows, Share, split
from trainers.tasks.table.columns import Matrix, Vector
from trainers.tasks.table.files import Table, texts

MOST_RANKED = 10


def queries_of(table: Table, column: str) -> Rows:
    """Return a number for each row's query, int64 [n]. Raises TaskError for a missing query."""
    cells = texts(table.columns[column])
    if cells.null_count:
        row = int(np.argmax(pc.is_null(cells).to_numpy(zero_copy_only=False)))
        raise TaskError(f"{table.where(row)}, column {column!r}: no query. Give each row its query")
    values = pc.unique(cells)
    return np.asarray(pc.index_in(cells, values).to_numpy(zero_copy_only=False), dtype=np.int64)


def split_queries(queries: Rows, *, validation: Share, test: Share) -> tuple[Rows, Rows, Rows]:
    """Return the rows for training, validation and testing, by fractions of whole queries."""
    different = np.unique(queries)
    try:
        parts = split(None, len(different), validation=validation, test=test)
    except TaskError:
        problem = f"{len(different)} queries are too few for training and validation"
        raise TaskError(f"{problem}. Give more queries") from None
    train, judged, tested = (np.flatnonzero(np.isin(queries, different[part])) for part in parts)
    return train, judged, tested


def ranking_targets(standardised: Matrix, relevance: Vector, table: Table, *, column: str, query: str) -> Matrix:
    """Return each row's standardised target, relevance and query, float32 [n, 3]."""
    if (relevance < 0).any():
        row = int(np.argmax(relevance < 0))
        problem = f"found {relevance[row]:g}, allowed: the row's relevance, a number of at least 0"
        raise TaskError(f"{table.where(row)}, column {column!r}: {problem}")
    return np.column_stack([standardised, relevance, queries_of(table, query)]).astype(np.float32)


class Ndcg(SeenSamples):
    """NDCG (normalised discounted cumulative gain) of the first ten rows, averaged over queries with a relevant row.

    The gain is the relevance and the discount log2(1 + rank), as in Jarvelin and Kekalainen 2002 and scikit-learn's
    `ndcg_score`. Rows with equal scores share their mean gain.
    """

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: scores [n], and targets from `ranking_targets`, [n, 3]."""
        self._parts.append((outputs.detach().cpu().double(), targets[:, 1:].detach().cpu().double()))

    def compute(self) -> float:
        """Return the mean over queries; NaN if no row is relevant."""
        return _mean(self._of_queries())

    def standard_error(self) -> float | None:
        """Return the mean's standard error; None for fewer than two queries with relevant rows."""
        found = self._of_queries()
        return float(np.std(found, ddof=1) / len(found) ** 0.5) if len(found) > 1 else None

    def _of_queries(self) -> list[float]:
        return _ndcg_of_queries(*(one.numpy() for one in self._all())) if self._parts else []


def ndcg_without_order(targets: Any) -> dict[str, float]:
    """Return the expected `val_ndcg` of a random order, from `ranking_targets` [n, 3]; {} without relevant rows."""
    value = _mean(_ndcg_of_queries(np.zeros(len(targets)), targets[:, 1:].astype(np.float64)))
    return {} if np.isnan(value) else {"val_ndcg": value}


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _ndcg_of_queries(scores: Any, targets: Any) -> list[float]:
    order = np.argsort(targets[:, 1], kind="stable")
    ends = np.flatnonzero(np.diff(targets[order, 1])) + 1
    found = [_ndcg(scores[rows], targets[rows, 0]) for rows in np.split(order, ends)]
    return [one for one in found if one is not None]


def _ndcg(scores: Any, gains: Any) -> float | None:
    discounts = 1.0 / np.log2(np.arange(len(scores)) + 2.0)
    discounts[MOST_RANKED:] = 0.0
    ideal = np.sort(gains)[::-1] @ discounts
    if ideal <= 0:
        return None
    _, place, counts = np.unique(-scores, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=gains) / counts
    ends = np.cumsum(counts)
    shared = np.add.reduceat(discounts, np.concatenate([[0], ends[:-1]]))
    return float(means @ shared / ideal)
