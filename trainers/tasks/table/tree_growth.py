"""Grows boosted trees as arrays with LightGBM. Each call makes a new booster, so that resumed trials are equal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainers.protocol import Params, TaskError
from trainers.tasks.shared.task_options import number_parameter, whole_parameter
from trainers.tasks.table.columns import Matrix

Margins = np.ndarray[Any, np.dtype[np.float64]]


_SPARE_DEPTH = 3
"""Additional depth beyond a balanced tree with equally many leaves. Each level costs a step in a pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOptions:
    """Options of boosted trees, with defaults for most tables."""

    trees: int = 300
    rate: float = 0.06
    leaves: int = 31
    leaf_rows: int = 20
    row_share: float = 0.8
    column_share: float = 0.8
    l2: float = 1.0

    @classmethod
    def of(cls, params: Params) -> "TreeOptions":
        """Return the options in a trial's parameters."""
        default = cls()
        return cls(
            trees=whole_parameter(params, "trees", default.trees, low=1, high=100_000),
            rate=number_parameter(params, "tree_rate", default.rate, low=1e-6, high=1.0),
            leaves=whole_parameter(params, "leaves", default.leaves, low=2, high=4096),
            leaf_rows=whole_parameter(params, "leaf_rows", default.leaf_rows, low=1, high=1_000_000_000),
            row_share=number_parameter(params, "row_share", default.row_share, low=1e-3, high=1.0),
            column_share=number_parameter(params, "column_share", default.column_share, low=1e-3, high=1.0),
            l2=number_parameter(params, "l2", default.l2, low=0.0, high=1e12),
        )

    @property
    def depth(self) -> int:
        """Largest number of splits on the way to a leaf."""
        return min(self.leaves - 1, (self.leaves - 1).bit_length() + _SPARE_DEPTH)

    def lightgbm(self, classes: int | None) -> dict[str, Any]:
        """Return LightGBM's parameters. `classes` None means regression with the squared error as loss."""
        kinds: dict[int | None, dict[str, Any]] = {None: {"objective": "regression"}, 2: {"objective": "binary"}}
        return kinds.get(classes, {"objective": "multiclass", "num_class": classes}) | {
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "max_depth": self.depth,
            "min_data_in_leaf": self.leaf_rows,
            "bagging_fraction": self.row_share,
            "bagging_freq": 1,
            "feature_fraction": self.column_share,
            "lambda_l2": self.l2,
            "boost_from_average": False,
            "feature_pre_filter": False,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """Decision tree of k nodes, the root first."""

    numbers: Matrix  # threshold of each split, value of each leaf, float32 [k]
    columns: np.ndarray[Any, np.dtype[np.int64]]  # column of each split, int64 [k]
    children: np.ndarray[Any, np.dtype[np.int64]]  # left and right node, int64 [k, 2]; a leaf is its own child
    sets: Mapping[int, Sequence[int]] = field(default_factory=dict)


class Growth:
    """Grows trees on training rows [n, columns], for the part of a trial in one process.

    Attributes:
        margins: Sum of all trees' outputs, float64 [n, m]. The caller adds the outputs of new trees.
    """

    def __init__(
        self,
        rows: Matrix,
        targets: Any,
        *,
        margins: Margins,
        categories: Sequence[int],
        classes: int | None,
        options: TreeOptions,
        weights: Any = None,
    ) -> None:
        self._lightgbm = lightgbm = load_lightgbm()
        self._params = options.lightgbm(classes)
        self.margins = margins
        self._data = lightgbm.Dataset(
            rows, label=targets, weight=weights, init_score=self._init_score, params=self._params,
            categorical_feature=list(categories), free_raw_data=False,
        )  # fmt: skip

    @property
    def _init_score(self) -> Margins:
        """The margins in LightGBM's form: without a second dimension for a single margin."""
        return self.margins[:, 0] if self.margins.shape[1] == 1 else self.margins

    def grow(self, trees: int, *, seed: int, threads: int, tick: Callable[[], None]) -> Iterator[Tree]:
        """Yield new trees, `trees` for each output."""
        if trees == 0:
            return
        params = self._params | {"seed": seed & 0x7FFF_FFFF, "num_threads": threads}
        self._data.set_init_score(self._init_score)
        booster = self._lightgbm.Booster(params, self._data)
        for _ in range(trees):
            booster.update()
            tick()
        grown = booster.dump_model()["tree_info"]
        for one in grown:
            yield _tree(one["tree_structure"])
        for _ in range(len(grown), trees * self.margins.shape[1]):  # LightGBM stops when no split helps
            yield _tree({"leaf_value": 0.0})


def load_lightgbm() -> Any:
    """Return the package lightgbm. Raises TaskError if it is not installed."""
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        cure = "Choose another architecture, or pip install lightgbm (on Debian also libgomp1)"
        raise TaskError(f"architecture: trees need the package lightgbm ({reason}). {cure}") from None
    return lightgbm


def has_lightgbm() -> bool:
    """Return whether the package lightgbm is installed."""
    try:
        load_lightgbm()
    except TaskError:
        return False
    return True


def _tree(structure: Mapping[str, Any]) -> Tree:
    numbers, columns, children = list[float](), list[int](), list[list[int]]()
    sets: dict[int, Sequence[int]] = {}

    def add(part: Mapping[str, Any]) -> int:
        node = len(numbers)
        numbers.append(0.0)
        columns.append(0)
        children.append([node, node])
        if "split_feature" not in part:
            numbers[node] = part["leaf_value"]
            return node
        columns[node] = part["split_feature"]
        if part["decision_type"] == "==":
            sets[node] = [int(level) for level in str(part["threshold"]).split("||")]
        else:
            numbers[node] = _at_most(part["threshold"])
        children[node] = [add(part["left_child"]), add(part["right_child"])]
        return node

    add(structure)
    return Tree(
        numbers=np.asarray(numbers, dtype=np.float32),
        columns=np.asarray(columns, dtype=np.int64),
        children=np.asarray(children, dtype=np.int64),
        sets=sets,
    )


def _at_most(threshold: float) -> float:
    """Return the largest float32 not above a threshold, which separates float32 rows equally."""
    rounded = np.float32(threshold)
    return float(rounded if float(rounded) <= threshold else np.nextafter(rounded, np.float32(-np.inf)))
