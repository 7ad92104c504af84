"""Gradient-boosted trees, grown by LightGBM. Predicting needs only torch.

Shapes: n rows, d dense columns, c categories, t trees with at most l leaves, so 2 l - 1 nodes, m margins.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from trainers.protocol import TaskError
from trainers.tasks.shared.data_fingerprint import DataMark
from trainers.tasks.table.columns import Matrix
from trainers.tasks.table.targets import learned_part
from trainers.tasks.table.tree_growth import Growth, Tree, TreeOptions

_MOST_SET_BYTES = 2**30


class BoostedTrees(nn.Module):
    """Boosted trees, grown epoch by epoch, with summed outputs; see `trainers.contract.task`.

    Input: float32 [n, d + c] from `Encoding.encode`; output: [n, outputs], or [n] for a number (`outputs` None). Future
    trees add 0, so that tensors have the same shapes from the start.
    """

    branches: Tensor
    columns: Tensor
    sets: Tensor
    base: Tensor
    roots: Tensor  # the first node of each tree, int64 [t]

    def __init__(
        self,
        *,
        dense: int,
        category_sizes: Sequence[int],
        outputs: int | None,
        options: TreeOptions,
        meaning: object,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self._dense, self._outputs, self._options = dense, outputs, options
        self._class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
        self._margins = 1 if outputs is None or outputs == 2 else outputs
        self._levels = max(category_sizes, default=0)
        trees, nodes = options.trees * self._margins, 2 * options.leaves - 1
        self._nodes = nodes
        _check_size(trees, nodes, self._levels)
        self.mark = DataMark(meaning)
        # Threshold of each split and value of each leaf: l - 1 and l numbers of each tree.
        self.numbers = nn.Parameter(torch.zeros(trees, nodes), requires_grad=False)
        own = torch.arange(trees * nodes).view(trees, nodes, 1)
        self.register_buffer("branches", own.repeat(1, 1, 2))
        self.register_buffer("columns", torch.zeros(trees, nodes, dtype=torch.int64))
        self.register_buffer("sets", torch.zeros(trees, nodes, self._levels, dtype=torch.uint8))
        self.register_buffer("base", torch.zeros(self._margins))
        self.register_buffer("roots", own[:, 0, 0].clone(), persistent=False)
        self._growth: Growth | None = None
        self._grown = options.trees  # trees that rows pass; fewer while the others are known to be empty

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [n, outputs], or standardised numbers [n]."""
        roots = self.roots[: self._grown * self._margins]
        values = self.numbers.view(-1)[self._leaves_of(rows, self._levels_of(rows), roots)]
        margins = values.view(rows.shape[0], self._grown, self._margins).sum(1) + self.base
        return self._outputs_of(margins)

    def grow_epoch(
        self, inputs: Tensor, targets: Tensor, *, epoch: int, epochs: int, seed: int, threads: int,
        tick: Callable[[], None],
    ) -> Tensor:  # fmt: skip
        """Grow the trees of an epoch; see `GrownModel`."""
        trees = self._options.trees
        first, last = trees * (epoch - 1) // epochs, trees * epoch // epochs
        growth = self._growth or self._begin(inputs, learned_part(targets).contiguous(), first, tick)
        grown = growth.grow(last - first, seed=seed, threads=threads, tick=tick)
        for number, tree in enumerate(grown, first * self._margins):
            self._take(number, tree)
        self._grown = last
        self._add_margins(growth, inputs, first, last, tick)
        return self._outputs_of(torch.from_numpy(growth.margins).float())

    def _begin(self, inputs: Tensor, targets: Tensor, first: int, tick: Callable[[], None]) -> Growth:
        options = self._options
        weights = None if self._class_weights is None else self._class_weights[targets]
        if first == 0:
            self.base.copy_(_base(targets, self._margins, self._outputs, weights))
        self._growth = growth = Growth(
            cast("Matrix", inputs.numpy()),
            targets.numpy(),
            margins=self.base.double().repeat(len(inputs), 1).numpy(),
            categories=range(self._dense, inputs.shape[1]),
            classes=self._outputs,
            options=options,
            weights=None if weights is None else weights.numpy(),
        )
        self._add_margins(growth, inputs, 0, first, tick)  # outputs of a resumed trial's earlier trees
        return growth

    def _take(self, number: int, tree: Tree) -> None:
        used, offset = len(tree.numbers), number * self._nodes
        self.numbers[number, :used] = torch.from_numpy(tree.numbers)
        self.branches[number, :used] = torch.from_numpy(tree.children) + offset
        self.columns[number, :used] = torch.from_numpy(tree.columns)
        for node, levels in tree.sets.items():
            self.sets[number, node, levels] = 1

    def _add_margins(self, growth: Growth, rows: Tensor, first: int, last: int, tick: Callable[[], None]) -> None:
        """Add trees' outputs to the margins in a fixed order, so that a resumed trial gets equal bits."""
        levels = self._levels_of(rows)
        for number in range(first * self._margins, last * self._margins):
            leaves = self._leaves_of(rows, levels, self.roots[number : number + 1])
            growth.margins[:, number % self._margins] += self.numbers.view(-1)[leaves[:, 0]].double().numpy()
            tick()

    def _levels_of(self, rows: Tensor) -> Tensor:
        return rows.long() if self._levels else rows

    def _leaves_of(self, rows: Tensor, levels: Tensor, roots: Tensor) -> Tensor:
        columns, numbers, branches = self.columns.view(-1), self.numbers.view(-1), self.branches.view(-1)
        place = roots.expand(rows.shape[0], -1)  # len(rows) would be a constant in an exported program
        for _ in range(self._options.depth):
            column = columns[place]
            goes_left = rows.gather(1, column) <= numbers[place]
            if self._levels:
                level = levels.gather(1, column).clamp(0, self._levels - 1)
                in_set = self.sets.view(-1)[place * self._levels + level] != 0
                is_level = column >= self._dense
                goes_left = (is_level & in_set) | (~is_level & goes_left)  # ONNX Runtime has no Where of booleans
            place = branches[2 * place + (~goes_left).long()]
        return place

    def _outputs_of(self, margins: Tensor) -> Tensor:
        if self._outputs is None:
            return margins.squeeze(1)
        if self._outputs == 2:  # the cross entropy of (-z / 2, z / 2) is the logistic loss of z
            return torch.cat([-0.5 * margins, 0.5 * margins], dim=1)
        return margins


def _check_size(trees: int, nodes: int, levels: int) -> None:
    size = trees * nodes * levels
    if size > _MOST_SET_BYTES:
        raise TaskError(
            f"architecture: {trees} trees of {nodes} nodes and a column of {levels} categories need "
            f"{size / 2**30:.1f} GiB, more than {_MOST_SET_BYTES / 2**30:g} GiB. Choose fewer trees or leaves, or "
            "leave this column out with task_options.ignore"
        )


def _base(targets: Tensor, margins: int, outputs: int | None, weights: Tensor | None) -> Tensor:
    """Return the best constant prediction: the mean, or log odds or log shares of the classes, float32 [m]."""
    if outputs is None:
        return targets.double().mean().float().view(1)
    counts = torch.bincount(targets, weights, minlength=outputs).double() + 0.5
    logs = (counts / counts.sum()).log()
    return (logs[1] - logs[0]).float().view(1) if margins == 1 else logs.float()
