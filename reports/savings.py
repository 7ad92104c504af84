"""Savings of pruning, and its estimated misses.

A pruner with random continuations sometimes continues trials that it would have stopped: an unbiased sample of the
stopped trials. Their share among the best models estimates how many the others would have given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.phrases import plural, usd
from search_spaces.messages import significant
from studies.records.records import NANO, DecisionRecord, StudyRecord, TrialRecord
from studies.results.analysis import ArchivePoint
from studies.results.pareto import last_epoch

RANDOM_CONTINUATION = "random continuation"  # prefix of the reason of a decision that continued a trial by chance


@dataclass(frozen=True, kw_only=True, slots=True)
class Savings:
    """Savings from stopping trials early."""

    stopped: int  # number of trials stopped or paused by a decision before the last epoch
    epochs: int  # epochs that these trials did not train
    usd: float  # price of these epochs in dollars, at each trial's mean price of an epoch
    continued: int
    found: int  # number of continued trials with one of the best models after the epoch of the would-be stop

    @property
    def missed(self) -> float | None:
        """Return the expected number of stopped trials among the best models; None without a sample."""
        return self.stopped * self.found / self.continued if self.continued else None


def savings(study: StudyRecord, archive: Sequence[ArchivePoint]) -> Savings | None:
    """Return the savings of pruning; None if no trial was stopped, or the number of epochs is unknown."""
    planned = last_epoch(study.spec)
    if planned is None:
        return None
    stopped = [trial for trial in study.started if _was_stopped(trial, planned)]
    if not stopped:
        return None
    by_chance = [(trial, first) for trial in study.started if (first := _first_by_chance(trial)) is not None]
    latest = {point.trial: point.epoch for point in sorted(archive, key=lambda one: one.epoch)}
    return Savings(
        stopped=len(stopped),
        epochs=sum(planned - trial.epochs[-1].epoch for trial in stopped),
        usd=sum((planned - trial.epochs[-1].epoch) * _usd_per_epoch(trial) for trial in stopped),
        continued=len(by_chance),
        found=sum(latest.get(trial.number or 0, 0) > first.epoch for trial, first in by_chance),
    )


def savings_lines(study: StudyRecord, archive: Sequence[ArchivePoint]) -> list[str]:
    """Return savings and estimated misses of pruning as sentences; empty without stopped trials."""
    found = savings(study, archive)
    if found is None:
        return []
    spent = study.cost_nano_usd / NANO
    trials = f"{plural(found.stopped, 'trial')} {'was' if found.stopped == 1 else 'were'}"
    cost = f"Training them to the end would have cost {usd(found.usd)} more, for {plural(found.epochs, 'epoch')}"
    times = (
        f", {significant(found.usd / spent, 2)} times what the study has cost" if spent > 0 and found.usd > 0 else ""
    )
    lines = [f"{trials} stopped before the last epoch. {cost}{times}."]
    if not found.continued:
        return [*lines, "No trial went on by chance, so it is unknown what the stopped trials would have found."]
    sample = f"Of {plural(found.continued, 'trial')} that went on by chance although they looked poor"
    if not found.found:
        return [*lines, f"{sample}, none gave one of the best models."]
    missed = f"At that rate the stopped trials would have given about {max(1, round(found.missed or 0))} more."
    return [*lines, f"{sample}, {found.found} gave one of the best models. {missed}"]


def _was_stopped(trial: TrialRecord, planned: int) -> bool:
    is_over = trial.state in ("pruned", "paused")
    return is_over and bool(trial.epochs) and trial.epochs[-1].epoch < planned and _was_decided(trial)


def _was_decided(trial: TrialRecord) -> bool:
    """Return whether a decision other than "continue" at its last epoch ended the trial."""
    return any(one.action != "continue" and one.epoch >= trial.epochs[-1].epoch for one in trial.decisions)


def _first_by_chance(trial: TrialRecord) -> DecisionRecord | None:
    return next((one for one in trial.decisions if is_by_chance(one)), None)


def is_by_chance(decision: DecisionRecord) -> bool:
    """Return whether a decision randomly continued a trial that would have been stopped."""
    return decision.action == "continue" and decision.reason.startswith(RANDOM_CONTINUATION)


def _usd_per_epoch(trial: TrialRecord) -> float:
    return sum(one.cost_nano_usd for one in trial.epochs) / NANO / len(trial.epochs)
