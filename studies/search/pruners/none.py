"""No pruning: every trial trains to its last epoch."""

from __future__ import annotations

from studies.search.policy import Decision, History, Thaw


class NoPruner:
    """Has no rungs, so it is never asked to decide."""

    def rungs(self, epochs: int) -> tuple[int, ...]:  # noqa: ARG002 - the interface of a pruner
        """None."""
        return ()

    def decide(self, history: History, number: int, rung: int) -> Decision:  # noqa: ARG002 - as above
        """Continue."""
        return Decision(action="continue", reason="pruning is off")

    def thaw(self, history: History) -> Thaw | None:  # noqa: ARG002 - as above
        """Nothing is ever paused by it."""
        return None

    def prepare(self, history: History) -> None:
        """There is nothing to prepare."""

    def worth_least(self, history: History) -> int | None:  # noqa: ARG002 - as above
        """Nothing ever waits."""
        return None
