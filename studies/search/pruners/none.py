"""No pruning."""

from studies.search.policy import Decision, History, StoppingPruner


class NoPruner(StoppingPruner):
    """A pruner without decision epochs: all trials train to their last epoch."""

    def rungs(self, epochs: int) -> tuple[int, ...]:  # noqa: ARG002 - the interface of a pruner
        """Return no epochs."""
        return ()

    def decide(self, history: History, number: int, rung: int) -> Decision:  # noqa: ARG002 - the interface of a pruner
        """Continue."""
        return Decision(action="continue", reason="pruning is off")
