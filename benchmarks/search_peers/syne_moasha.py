"""Syne Tune's MOASHA as shipped, in an environment of its own: its scheduler decides, our virtual time drives it.

Its order at a rung is an argsort read as ranks, so that a newest trial that nothing dominates may be stopped; that is
part of what is measured. Random search, rungs 3, 9, 27, stopping variant.
"""

from __future__ import annotations

from pathlib import Path

from bridge import Environment, bridge

from studies.search.policy import Decision, History
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from studies.simulation.setting import Setting

VERSION = "0.16.0"
NEEDS = ("numpy", "pandas", "typing_extensions", "sortedcontainers", "dill", "psutil", "tqdm", "scikit-learn")
ENVIRONMENT = Environment(
    name=f"syne-tune-{VERSION}",
    # Its optional parts want much more than its scheduler does.
    installs=(NEEDS, ("--no-deps", f"syne-tune=={VERSION}")),
)
SCRIPT = Path(__file__).with_name("syne_bridge.py")


class SyneMoasha(NoPruner):
    """Asks the other process at each rung.

    Args:
        setting: The simulated study.
    """

    def __init__(self, setting: Setting) -> None:
        self._asha = MoAsha()
        self._bridge = bridge(SCRIPT, ENVIRONMENT)
        order = {"seed": setting.seed, "max_t": setting.epochs, "grace": self._asha.grace, "eta": self._asha.eta}
        self._bridge.ask({"new": order | {"metrics": [objective.metric for objective in setting.objectives]}})

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """3, 9, 27, ..."""
        return self._asha.rungs(epochs)

    def decide(self, history: History, number: int, rung: int) -> Decision:
        """What its scheduler says."""
        values = list(history.at_rung[rung][number])
        said = self._bridge.ask({"result": {"trial": number, "epoch": rung, "values": values}})
        return Decision(action="stop" if said == "STOP" else "continue", reason=f"the scheduler says {said}")
