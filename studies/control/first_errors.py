"""Whether the user's code works at all: a mistake in it fails every trial, and each of them costs a start."""

from __future__ import annotations

from studies.control.live_study import LiveStudy


class FirstErrors:
    """Counts the trials that failed by errors of the user's code.

    Args:
        live: The study.

    Attributes:
        count: Their number under this controller: what was mended since an earlier one may work now.
    """

    def __init__(self, live: LiveStudy) -> None:
        self.count = 0
        self._live = live

    @property
    def nothing_works(self) -> bool:
        """Whether `faults.errors_at_start` trials failed so and no trial has trained an epoch.

        Those that are running may still show that the code works; meanwhile no other one is started.
        """
        most = self._live.setup.faults.errors_at_start
        if most is None or self.count < most:
            return False
        return not any(trial.epochs_done for trial in self._live.registry.by_id.values())
