"""States of a trial, and the moves between them.

The state machine checks each move that it makes:

    queued ─► running ◄─► paused ─► pruned
      │          ├─► complete
      │          ├─► pruned
      │          └─► failed
      └─► pruned, without a number: it was cancelled in the queue, and readers leave it out
"""

from __future__ import annotations

from collections.abc import Mapping

from studies.records import TrialState

TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    "queued": frozenset({"running", "pruned"}),
    "running": frozenset({"paused", "complete", "pruned", "failed"}),
    "paused": frozenset({"running", "pruned"}),
    "complete": frozenset(),
    # Only a trial that was pruned because its study closed may return, when the study gets more budget.
    "pruned": frozenset({"paused"}),
    "failed": frozenset(),
}


class IllegalTransitionError(AssertionError):
    """A trial was moved to a state that may not follow its present one: a defect of this program."""


def check_transition(before: TrialState, after: TrialState) -> None:
    """Raise `IllegalTransitionError` unless `after` may follow `before`."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(f"a {before} trial cannot become {after}; allowed: {sorted(TRANSITIONS[before])}")
