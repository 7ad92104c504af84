"""Base of tasks on the user's files, split into parts. The search uses only training and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trainers.contract.task import BaseTask, Params
from trainers.protocol import NoTestPartError, TaskError
from trainers.tasks.shared.class_metric_names import MOST_RANKED_CLASSES, rare_share, whole_class_metrics

if TYPE_CHECKING:
    from torch import Tensor

Rows = np.ndarray[Any, np.dtype[np.int64]]  # indices of rows, int64 [n], ascending

_SEED = 0
Share = float | Literal["auto"]
_FEWEST_ROWS = 2_000
_MOST_TEST_ROWS = 5_000
_TEST_SHARE = 0.15


def split(classes: Rows | None, rows: int, *, validation: Share, test: Share = 0.0) -> tuple[Rows, Rows, Rows]:
    """Return the rows for training, validation and testing. `validation` and `test` are fractions of all rows.

    `classes` (int64 [rows] or None) keep their proportions. "auto" is 15 % of 2,000 rows or more, at most 5,000 rows,
    and none of fewer rows.
    """
    auto = min(_TEST_SHARE, _MOST_TEST_ROWS / rows) if rows >= _FEWEST_ROWS else 0.0
    validation, test = (auto if share == "auto" else share for share in (validation, test))
    order = np.random.default_rng(_SEED).permutation(rows)
    groups = [order] if classes is None else [order[classes[order] == one] for one in np.unique(classes)]
    parts: tuple[list[Rows], list[Rows], list[Rows]] = ([], [], [])
    for group in groups:
        for_validation = _counts(len(group), validation)
        for_test = min(_counts(len(group), test), len(group) - for_validation - 1)
        parts[1].append(group[:for_validation])
        parts[2].append(group[for_validation : for_validation + for_test])
        parts[0].append(group[for_validation + for_test :])
    joined = tuple(np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    if len(joined[0]) == 0 or (validation > 0 and len(joined[1]) == 0):
        raise TaskError(f"{rows} rows are too few for training and validation. Give more rows")
    return joined[0], joined[1], joined[2]


def _counts(rows: int, share: float) -> int:
    """Return a group's number of rows in a part: at least one unless the share is 0, and never all."""
    return min(max(1, round(rows * share)), rows - 1) if share > 0 else 0


class RareClass(NamedTuple):
    """A class of few rows. `usual` is the largest class; predicting it for all rows has the error `usual_error`."""

    label: str
    share: float
    usual: str
    usual_error: float


def part_sizes(parts: Mapping[str, tuple[Any, Any]], *, has_folds: bool = False) -> str:
    """Return each part's number of rows, in words. With folds, training and validation have the same rows."""
    uses = {"train": "to train on", "validation": "for validation", "test": "for testing, never seen by the search"}
    if has_folds:
        uses = {"train": "to train on and to validate, in folds", "test": uses["test"]}
    return ", ".join(f"{len(parts[name][1])} {use}" for name, use in uses.items() if name in parts)


def check_share(value: float, name: str, *, lowest: float) -> float:
    """Return a fraction of rows. Raises TaskError unless it is from `lowest` to 0.5."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= 0.5:
        raise TaskError(f"task_options.{name}: found {value!r}, allowed: a number from {lowest:g} to 0.5")
    return float(value)


def shares_of(validation: float, test: Share) -> dict[str, Share]:
    """Return the fractions of the training file for other parts. Raises TaskError for wrong fractions."""
    return {
        "validation": check_share(validation, "validation_share", lowest=0.001),
        "test": test if test == "auto" else check_share(test, "test_share", lowest=0.0),
    }


def parts_of(inputs: Any, targets: Any, rows: Sequence[Rows]) -> dict[str, tuple[Any, Any]]:
    """Return inputs and targets of each part from its rows, without empty parts."""
    named = zip(("train", "validation", "test"), rows, strict=True)
    return {name: (inputs[chosen], targets[chosen]) for name, chosen in named if len(chosen)}


class SplitTask(BaseTask):
    """A task with samples split into parts. Its method `encode` makes samples of new rows."""

    classes: tuple[str, ...] = ()  # class labels in the order of the outputs; empty for other tasks
    class_weights: tuple[float, ...] | None = None  # weight of each class in the loss; None: equal weights of rows
    no_test = "there are no test rows. Set task_options.test to a file, or test_share above 0"
    _parts: Mapping[str, Any]
    """Inputs and targets as arrays, first dimension samples, of "train", "validation" and, if present, "test"."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the validation metrics."""
        return ("val_error", "val_accuracy", "val_log_loss", *whole_class_metrics(len(self.classes)))

    @property
    def positive(self) -> int:
        """Number of the class that AUROC judges: the last class with fewest training rows."""
        counts = np.bincount(self.targets("train"), minlength=len(self.classes))
        return len(counts) - 1 - int(counts[::-1].argmin())

    @property
    def rare_class(self) -> RareClass | None:
        """Smallest class of the training rows, if it is rare and validation has several classes."""
        if not self.classes or len(np.unique(self.targets("validation"))) == 1:
            return None
        counts = np.bincount(self.targets("train"), minlength=len(self.classes))
        shares = counts / counts.sum()
        smallest, largest = int(shares.argmin()), int(shares.argmax())
        if shares[smallest] >= rare_share(len(shares)):
            return None
        return RareClass(
            label=self.classes[smallest], share=float(shares[smallest]),
            usual=self.classes[largest], usual_error=float(1 - shares[largest]),
        )  # fmt: skip

    def balance_classes(self) -> None:
        """Weight classes equally in the loss and in `val_loss` only: rows / (classes * rows of the class)."""
        counts = np.bincount(self.targets("train"), minlength=len(self.classes))
        self.class_weights = tuple((counts.sum() / (len(counts) * np.maximum(counts, 1))).tolist())
        self.weights = (
            self._class_weights_of
        )  # set only here, because the trainer treats tasks with weights differently

    def _class_weights_of(self, targets: Tensor) -> dict[str, Tensor]:
        import torch

        return {"loss": torch.tensor(self.class_weights, device=targets.device)[targets]}

    def targets(self, part: str) -> Any:
        """Return a part's targets as an array, first dimension samples."""
        return self._parts[part][1]

    @property
    def training_samples(self) -> int:
        """Number of training samples."""
        return len(self._parts["train"][1])

    @property
    def has_test_part(self) -> bool:
        """Return whether there are samples for testing."""
        return "test" in self._parts

    def train_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return the training samples [n, ...] and targets [n]: int64 classes, or float32 numbers."""
        return self._part("train")

    def validation_data(self, _params: Params) -> tuple[Tensor, Tensor]:
        """Return the validation samples and targets, as `train_data` does."""
        return self._part("validation")

    def test_data(self, _params: Params) -> tuple[Tensor, Tensor]:  # noqa: PT019 - no test of pytest
        """Return the test samples and targets, as `train_data` does. Raises NoTestPartError."""
        if not self.has_test_part:
            raise NoTestPartError(self.no_test)
        return self._part("test")

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return each sample's error and accuracy, 0 or 1, and cross entropy in nats, shape [n]."""
        from torch.nn.functional import cross_entropy

        log_loss = cross_entropy(outputs.double(), targets, reduction="none")
        return {**super().metrics(outputs, targets), "val_log_loss": log_loss}

    def whole_metrics(self, _params: Params) -> dict[str, Any]:
        """Return the metrics that need all samples at once, or {} without classes."""
        if not self.classes:
            return {}
        from trainers.tasks.shared.class_metrics import ClassMetrics

        return {"val": ClassMetrics(len(self.classes), self.positive)}

    def answer_summary(self) -> Any:
        """Return an object that describes answers (`trainers.loop.epoch_metrics`), or None."""
        if not 0 < len(self.classes) <= MOST_RANKED_CLASSES:
            return None
        from trainers.tasks.shared.class_metrics import Confusion

        return Confusion(self.classes)

    def decode(self, outputs: Tensor) -> list[Any]:
        """Return the most probable classes' labels, for outputs [n, classes]."""
        return [self.classes[index] for index in outputs.argmax(dim=-1).tolist()]

    def postprocessing(self) -> dict[str, Any]:
        """Describe the outputs as plain values: logits of the classes."""
        return {"kind": "classes", "labels": list(self.classes)}

    def _part(self, name: str) -> tuple[Tensor, Tensor]:
        import torch

        inputs, targets = self._parts[name]
        return torch.from_numpy(inputs), torch.from_numpy(targets)
