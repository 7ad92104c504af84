"""With how many ranks a trial goes on while devices are gone.

A trial of w ranks that accumulates a micro-batches in a step goes on with k < w ranks that accumulate a w / k each:

    batch_per_rank x world_size x accumulate = batch_per_rank x k x (a w / k)

So a step takes the same samples, in micro-batches of the same size, at the same learning rate: all parameters of the
trial keep their meaning, and its weights are equal up to rounding. Only an epoch takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies.control.setup import StudySetup
from studies.control.trials import Trial


def ranks_for(setup: StudySetup, trial: Trial, most_ranks: float) -> int:
    """Number of ranks with which a trial goes on if there are devices for so many; its own if it has to wait for them.

    A trial that has not begun waits, and so does one whose model is sharded, which fewer devices may not hold.
    """
    own = trial.world_size
    if own <= most_ranks or setup.on_lost_node == "wait" or trial.number is None:
        return own
    if _option(setup, trial.declared_params, "shard", "none") != "none":
        return own
    steps = own * accumulated(setup, trial.declared_params)
    fitting = (ranks for ranks in range(int(most_ranks), 0, -1) if steps % ranks == 0)
    return next((ranks for ranks in fitting if setup.world_sizes is None or ranks in setup.world_sizes), own)


def params_on(setup: StudySetup, trial: Trial, ranks: int) -> Mapping[str, Any]:
    """Parameters with which that many ranks begin to train the trial."""
    if ranks == trial.world_size:
        return trial.declared_params
    passes = trial.world_size * accumulated(setup, trial.declared_params) // ranks
    return {**trial.declared_params, "accumulate": passes}


def accumulated(setup: StudySetup, params: Mapping[str, Any]) -> int:
    """Number of micro-batches in a step of each rank of a trial with its own world size."""
    return int(_option(setup, params, "accumulate", 1))


def _option(setup: StudySetup, params: Mapping[str, Any], name: str, default: Any) -> Any:
    return params.get(name, setup.training.get(name, default))
