"""Ending a study in order: nothing is started any more, and gangs stop with their epochs or within them."""

from __future__ import annotations

import math

from studies.control.machine import endings
from studies.control.machine.commands import DrainGang
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Attempt, Trial
from studies.records.records import StopReason
from studies.storage.writing.changes import StudyChanged
from studies.util import redact

END_SECONDS = 5.0
"""Rest of an epoch that is still trained where somebody waits for the end, the device will be gone soon, or nothing of
the epoch may be kept."""
_SOON: frozenset[StopReason] = frozenset({"interrupted", "stopped", "storage", "error"})


class Draining:
    """Decides which gangs are told to stop, and whether trials may still be started.

    Attributes:
        reason: Why all gangs were told to stop, None if they were not.
        nothing_fits: Whether a slot was free and the rest of the budget was too small for any epoch.
    """

    def __init__(self, live: LiveStudy) -> None:
        self.reason: StopReason | None = None
        self.nothing_fits = False
        self._live = live

    @property
    def starts_nothing(self) -> bool:
        """Whether no trial is started any more."""
        return self.reason is not None or self.nothing_fits

    def look_again(self) -> None:
        """Forget that nothing fits, unless slots were let go for it: they are not there to find that out again."""
        self.nothing_fits = self.nothing_fits and bool(self._live.released)

    def drain(self, reason: StopReason, message: str = "") -> None:
        """Tell all gangs to stop, and again if somebody waits for the end now.

        Args:
            message: Error for people, which is stored each time; empty if there is none.
        """
        live = self._live
        if message:
            live.outbox.write(StudyChanged(columns={"error": redact(message)}))
        if self.reason is not None and reason not in _SOON:
            return
        self.reason = self.reason or reason
        for trial in live.registry.running:
            attempt = trial.attempt
            # A person waits, or no checkpoint is taken.
            if reason in _SOON - {"error"} and attempt is not None:
                self._stop_soon(trial, attempt, "interrupted")
            elif attempt is not None:
                self.drain_gang(trial, attempt, END_SECONDS if reason in _SOON else math.inf)

    def refuse(self, trial: Trial) -> None:
        """End a study that was resumed on too few slots: the trial, and all behind it, would wait for ever."""
        name = f"trial {trial.number}" if trial.number is not None else "a queued trial"
        self.drain("error", f"{name} needs {trial.world_size} slots, the study has {self._live.slots}")

    def drain_leaving(self) -> None:
        """Tell the gangs to stop that hold slots whose devices will be gone soon."""
        for trial in self._live.registry.running:
            if trial.attempt is not None and self.must_leave(trial.attempt):
                self._stop_soon(trial, trial.attempt, "taken off a device that will be gone")

    def _stop_soon(self, trial: Trial, attempt: Attempt, why: str) -> None:
        """Have a gang stop within seconds; one that has not trained a step has nothing to lose, and may start long."""
        if attempt.started:
            self.drain_gang(trial, attempt, END_SECONDS)
        else:
            endings.cut(self._live, trial, f"{why} before it trained a step; goes on from epoch {trial.resume_epoch}")

    def must_leave(self, attempt: Attempt) -> bool:
        """Whether a device that an attempt holds will be gone soon."""
        return not self._live.leaving.isdisjoint(attempt.slots)

    def drain_gang(self, trial: Trial, attempt: Attempt, within_seconds: float = math.inf) -> None:
        """Tell a gang to stop at the end of its epoch, or within it if that takes longer; again only to be quicker."""
        if attempt.drains_within is None or within_seconds < attempt.drains_within:
            attempt.drains_within = within_seconds
            order = DrainGang(trial_id=trial.id, attempt=attempt.number, within_seconds=within_seconds)
            self._live.outbox.order(order)
