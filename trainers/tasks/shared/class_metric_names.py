"""Names of the metrics of classes, and the one that judges a rare class."""

MOST_RANKED_CLASSES = 100
METRIC_OF_RARE = "val_auprc"
"""Objective for a rare class. `val_balanced_error` counts decisions, whose threshold is chosen after the search."""


def rare_share(classes: int) -> float:
    """Return the share of the rows below which a class is rare: 5 %, or a quarter of its even share."""
    return min(0.05, 0.25 / classes)


def whole_class_metrics(classes: int) -> tuple[str, ...]:
    """Return the names of a classifier's metrics that are not means over samples."""
    ranked = ("val_auroc", "val_auprc") if classes <= MOST_RANKED_CLASSES else ()
    return (*ranked, "val_f1", "val_balanced_error")
