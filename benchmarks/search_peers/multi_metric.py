"""OptunaHub's MultiMetricPruner around Optuna's median rule, as its page sets it up, in an environment of its own.

It is loaded from GitHub, or from the checkout of `optuna/optunahub-registry` that OPTUNAHUB_REGISTRY names.
"""

from __future__ import annotations

from pathlib import Path

from bridge import Environment, bridge

from studies.search.policy import Decision, History, StoppingPruner
from studies.simulation.setting import Setting

ENVIRONMENT = Environment(name="optunahub-0.5.0", installs=(("optuna==5.0.0", "optunahub==0.5.0"),))
SCRIPT = Path(__file__).with_name("multi_metric_bridge.py")


class MultiMetric(StoppingPruner):
    """Asks the other process after each epoch, with what all trials have measured since.

    Args:
        setting: The simulated study.
    """

    def __init__(self, setting: Setting) -> None:
        self._bridge, self._told = bridge(SCRIPT, ENVIRONMENT), dict[int, tuple[int, str]]()
        self._bridge.ask({"new": [objective.metric for objective in setting.objectives]})

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return every epoch but the last."""
        return tuple(range(1, epochs))

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """Stop the trial if the pruner says so."""
        news = []
        for seen in history.trials:
            epoch, state = self._told.get(seen.number, (0, ""))
            values = {at: list(values) for at, values in seen.at.items() if at > epoch}
            if values or seen.state != state:
                news.append({"number": seen.number, "values": values, "ended": seen.state in {"ended", "failed"}})
                self._told[seen.number] = (max([epoch, *values]), seen.state)
        prunes = self._bridge.ask({"news": news, "number": number})
        return Decision(action="stop" if prunes else "continue", reason=f"MultiMetricPruner at epoch {rung}")
