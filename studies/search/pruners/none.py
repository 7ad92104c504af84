"""No pruning: every trial trains to its last epoch."""

from __future__ import annotations

from studies.search.policy import Decision, History, StoppingPruner


class NoPruner(StoppingPruner):
    """A pruner without rungs, so that it is never asked to decide."""

    def rungs(self, epochs: int) -> tuple[int, ...]:  # noqa: ARG002 - the interface of a pruner
        """Returns no rung."""
        return ()

    def decide(self, history: History, number: int, rung: int) -> Decision:  # noqa: ARG002 - the interface of a pruner
        """Returns the decision to continue."""
        return Decision(action="continue", reason="pruning is off")
