"""Whether the user's code works at all: a mistake in it fails every trial, and each of them costs a start."""

from __future__ import annotations

from studies.control.live_study import LiveStudy


class FirstErrors:
    """Counts the trials that failed by errors of the user's code under this controller: they may be mended since.

    Args:
        live: The study.
    """

    def __init__(self, live: LiveStudy) -> None:
        self._live = live
        self._before = self._errors()

    def _errors(self) -> int:
        return sum(trial.failure == "error" for trial in self._live.registry.by_id.values())

    @property
    def nothing_works(self) -> bool:
        """Whether `faults.errors_at_start` trials failed so and no trial has trained an epoch.

        Those that are running may still show that the code works; meanwhile no other one is started.
        """
        most = self._live.setup.faults.errors_at_start
        registry = self._live.registry
        if most is None or registry.count("failed") < most or any(one.epochs_done for one in registry.by_id.values()):
            return False
        return self._errors() - self._before >= most
