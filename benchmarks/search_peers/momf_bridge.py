"""Runs in the environment of BoTorch: one question per line in, one answer per line out.

Shapes: n configurations in the pool, D parameters, L fidelities, N observations, b pairs of both.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition.multi_objective.multi_fidelity import MOMF
from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

SCREENING_SAMPLES, SAMPLES = 16, 128
SHORT_LIST = 500
"""So many pairs are looked at with all samples, those that gain most with the few."""
MOST_FITTED = 300
"""Observations that the model learns from, the latest trials': a fit takes about a second then."""
CHUNK = 500
"""Pairs at a time: their joint covariance is [2, CHUNK, CHUNK]."""


class Chooser:
    """Learns the objectives of (configuration, fidelity), and chooses the pair that gains most per epoch.

    Args:
        order: `points` of the pool [n, D], fidelities in epochs `levels` [L] that end with the full training, what a
            start costs in epochs `start_epochs`, and the `seed` of the samples.
    """

    def __init__(self, order: dict) -> None:
        self._points = torch.tensor(order["points"])
        self._levels = torch.tensor(order["levels"])
        self._start_epochs, self._seed = order["start_epochs"], order["seed"]
        self._observed: list[list[float]] = []
        self._model: SingleTaskGP | None = None

    def best(self, observed: list, running: list, offers: list, reference: list) -> list[int] | None:
        """Row and epoch of the best pair; None if no gain is expected of any.

        Args:
            observed: Rows, epochs and both objectives, to be minimised [N, 4].
            running: Rows of the pending points, and the epochs up to which they are trained; fantasies end them as
                forecast.
            offers: Rows to choose from, and the epochs that they were trained already.
            reference: The worst that counts of both objectives.
        """
        table = torch.tensor(observed)
        x, y = self._inputs(table[:, 0], table[:, 1]), -table[:, 2:]
        if observed != self._observed:
            self._observed, self._model = observed, fitted(x[-MOST_FITTED:], y[-MOST_FITTED:], self._model)
        model: Any = self._model
        if running:
            ahead = self._inputs(*torch.tensor(running).T)
            fantasies = model.posterior(ahead).mean
            model = model.condition_on_observations(ahead, fantasies)
            x, y = torch.cat([x, ahead]), torch.cat([y, fantasies])
        front = FastNondominatedPartitioning(-torch.tensor([*reference, 0.0]), with_fidelity(y, x))
        return self._best_pair(Marginals(model), front, offers)

    def _best_pair(self, model: Model, front: FastNondominatedPartitioning, offers: list) -> list[int] | None:
        rows, epochs, cost = self._pairs(offers)
        x = self._inputs(rows, epochs)
        screened = self._gain(model, front, x, cost, SCREENING_SAMPLES)
        short = screened.topk(min(SHORT_LIST, len(screened))).indices.sort().values
        gain = self._gain(model, front, x[short], cost[short], SAMPLES)
        best = short[gain.argmax()]
        return [int(rows[best]), int(epochs[best])] if gain.max() > 0 else None

    def _gain(self, model: Model, front: FastNondominatedPartitioning, x: Tensor, cost: Tensor, samples: int) -> Tensor:
        """MOMF of each pair [b]: the gain of hypervolume over its cost in epochs, from so many samples."""
        sampler = SobolQMCNormalSampler(torch.Size([samples]), seed=self._seed)
        gains = []
        for some, epochs in zip(x.split(CHUNK), cost.split(CHUNK), strict=True):
            momf = MOMF(
                model,
                front.ref_point,
                front,
                sampler=sampler,
                objective=GenericMCMultiOutputObjective(with_fidelity),
                cost_call=lambda _, epochs=epochs: epochs[:, None, None],
            )
            gains.append(momf(some[:, None]))
        return torch.cat(gains)

    def _pairs(self, offers: list) -> tuple[Tensor, Tensor, Tensor]:
        """Row, epoch and cost in epochs of each pair that may be chosen [b]."""
        rows, trained = torch.tensor(offers).T
        offer, level = (self._levels > trained[:, None]).nonzero().T
        epochs = self._levels[level]
        return rows[offer], epochs, self._start_epochs + (epochs - trained[offer])

    def _inputs(self, rows: Tensor, epochs: Tensor) -> Tensor:
        """Parameters, then the fidelity s = epoch / T [b, D + 1]."""
        return torch.cat([self._points[rows.long()], epochs[:, None] / self._levels[-1]], dim=-1)


def with_fidelity(y: Tensor, X: Tensor) -> Tensor:  # noqa: N803 - as BoTorch names it
    """The objectives, then the fidelity objective, which is the fidelity itself: known, so that nothing learns it."""
    return torch.cat([y, X[..., -1:].expand(*y.shape[:-1], 1)], dim=-1)


def fitted(x: Tensor, y: Tensor, before: SingleTaskGP | None) -> SingleTaskGP:
    """BoTorch's default model and priors, by marginal likelihood; the search starts from what was found before."""
    model = SingleTaskGP(x, y, outcome_transform=Standardize(m=y.shape[-1]))
    if before is not None:
        own = {name: value for name, value in before.state_dict().items() if not name.startswith("outcome_transform")}
        model.load_state_dict(own, strict=False)
    with torch.enable_grad():
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


class Marginals(Model):
    """A model's posterior of each point alone, from joint posteriors of many.

    For single points [b, 1, D + 1] the library solves with a copy of the data each, which takes ten times as long.
    """

    num_outputs = 2

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def posterior(self, X: Tensor, **_: object) -> GPyTorchPosterior:  # noqa: N803 - its caller's name
        """Of b points without correlation."""
        joint = self._model.posterior(X.squeeze(-2))
        alone = MultitaskMultivariateNormal(joint.mean[:, None], DiagLinearOperator(joint.variance))
        return GPyTorchPosterior(alone)


def main() -> None:
    """Answer until the questions end."""
    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.double)
    torch.set_grad_enabled(False)
    chooser: Any = None
    for line in sys.stdin:
        question = json.loads(line)
        if "new" in question:
            torch.manual_seed(question["new"]["seed"])
            chooser, answer = Chooser(question["new"]), "ready"
        else:
            answer = chooser.best(**question["best"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
