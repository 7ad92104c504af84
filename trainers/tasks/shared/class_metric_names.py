"""Names of classification metrics, and the metric that judges a rare class."""

MOST_RANKED_CLASSES = 100
METRIC_OF_RARE = "val_auprc"
"""Objective for a rare class: `val_balanced_error` depends on a threshold, which is chosen after the search."""


def rare_share(classes: int) -> float:
    """Return the fraction of rows below which a class is rare: 5 %, or less with many classes."""
    return min(0.05, 0.25 / classes)


def whole_class_metrics(classes: int) -> tuple[str, ...]:
    """Return the names of a classifier's metrics that are not means over samples."""
    ranked = ("val_auroc", "val_auprc") if classes <= MOST_RANKED_CLASSES else ()
    return (*ranked, "val_f1", "val_balanced_error")
