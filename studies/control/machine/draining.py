"""Orderly end of a study: no new starts, and gangs stop at the end of their epochs or within them."""

import math

from studies.control.machine import trial_endings
from studies.control.machine.commands import DrainGang
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Attempt, Trial
from studies.records.records import StopReason
from studies.redact import redact
from studies.storage.writing.changes import StudyChanged

END_SECONDS = 5.0
"""Seconds to finish an epoch if a user waits, the device will be gone soon, or the epoch cannot be kept."""
_SOON: frozenset[StopReason] = frozenset({"interrupted", "stopped", "storage", "error"})


class Draining:
    """Decides which gangs must stop (all of them for a `reason`), and whether trials may still start."""

    def __init__(self, live: LiveStudy) -> None:
        self.reason: StopReason | None = None
        self.nothing_fits = False
        self._live = live

    @property
    def starts_nothing(self) -> bool:
        """Return whether no trial may start any more."""
        return self.reason is not None or self.nothing_fits

    def look_again(self) -> None:
        """Reset `nothing_fits`, unless slots were released because of it: they do not come back."""
        self.nothing_fits = self.nothing_fits and bool(self._live.released)

    def drain(self, reason: StopReason, message: str = "") -> None:
        """Make all gangs stop; a later, more urgent reason makes them stop sooner. `message` is stored for users."""
        live = self._live
        if message:
            live.outbox.write(StudyChanged(columns={"error": redact(message)}))
        if self.reason is not None and reason not in _SOON:
            return
        self.reason = self.reason or reason
        for trial in live.registry.running:
            attempt = trial.attempt
            # A user waits, or checkpoints cannot be written.
            if reason in _SOON - {"error"} and attempt is not None:
                self._stop_soon(trial, attempt, "interrupted")
            elif attempt is not None:
                self.drain_gang(trial, attempt, END_SECONDS if reason in _SOON else math.inf)

    def refuse(self, trial: Trial) -> None:
        """End a study that was resumed on too few slots: this trial and all behind it would wait forever."""
        name = f"trial {trial.number}" if trial.number is not None else "a queued trial"
        self.drain("error", f"{name} needs {trial.world_size} slots, but the study has {self._live.slots}")

    def drain_leaving(self) -> None:
        """Make gangs stop whose devices will be gone soon."""
        for trial in self._live.registry.running:
            if trial.attempt is not None and self.must_leave(trial.attempt):
                self._stop_soon(trial, trial.attempt, "its device will be removed; stopped")

    def _stop_soon(self, trial: Trial, attempt: Attempt, why: str) -> None:
        """Stop a gang within seconds; at once before its first step, since its start may take long and has no value."""
        if attempt.started:
            self.drain_gang(trial, attempt, END_SECONDS)
        else:
            trial_endings.cut(
                self._live, trial, f"{why} before it trained a step; continues from epoch {trial.resume_epoch}"
            )

    def must_leave(self, attempt: Attempt) -> bool:
        """Return whether an attempt holds a device that will be gone soon."""
        return not self._live.leaving.isdisjoint(attempt.slots)

    def drain_gang(self, trial: Trial, attempt: Attempt, within_seconds: float = math.inf) -> None:
        """Make a gang stop at the end of its epoch, or after `within_seconds`; repeated only to stop it sooner."""
        if attempt.drains_within is None or within_seconds < attempt.drains_within:
            attempt.drains_within = within_seconds
            order = DrainGang(trial_id=trial.id, attempt=attempt.number, within_seconds=within_seconds)
            self._live.outbox.order(order)
