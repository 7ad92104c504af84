"""Whether the first epoch tells how trials will rank: what it takes, and that the answer stays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from studies.search.model.curve_model import TELLING_TRIALS, first_epoch_tells
from studies.search.observations import Snapshot, decision_rungs

RUNG = 3


def trials(early: list[float], late: list[float | None], **more: object) -> list[Snapshot]:
    """Trials with a value after epoch 1 and at the rung; None has not reached it and runs."""
    return [
        Snapshot(
            number=number, params={}, state="running" if then is None else "paused", epochs=1 if then is None else RUNG,
            at={1: (0.5, now)} | ({} if then is None else {RUNG: (0.1, then)}), usd_per_epoch=1.0, paid_usd=1.0,
        )
        for number, (now, then) in enumerate(zip(early, late, strict=True))
    ]  # fmt: skip


RANKED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


@pytest.mark.parametrize(
    ("late", "tells"),
    [
        ([0.01, 0.02, 0.03, 0.04, 0.05, 0.06], True),
        ([0.01, 0.03, 0.02, 0.05, 0.04, 0.06], True),
        ([0.06, 0.05, 0.04, 0.03, 0.02, 0.01], False),
        ([0.03, 0.01, 0.06, 0.02, 0.05, 0.04], False),
        ([0.02] * 6, False),
        ([0.01, 0.02, 0.03, 0.04, 0.05, math.nan], True),
        ([0.01, 0.02, 0.03, 0.04, 0.05, None], False),
    ],
)
def test_the_first_epoch_tells_if_the_first_trials_keep_their_ranks(late: list[float | None], tells: bool) -> None:
    assert first_epoch_tells(trials(RANKED, late), RUNG, 1) == tells


def test_later_trials_change_nothing() -> None:
    """Those that go on beyond epoch 1 are chosen by then."""
    first = trials(RANKED, [0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
    more = trials([*RANKED, 0.7, 0.8], [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.001, None])
    assert len(first) == TELLING_TRIALS
    assert first_epoch_tells(first, RUNG, 1) == first_epoch_tells(more, RUNG, 1) is True
    assert not first_epoch_tells(first[:-1], RUNG, 1)


def test_a_trial_that_ended_before_the_rung_is_left_out() -> None:
    seen = trials(RANKED, [0.01, 0.02, 0.03, 0.04, 0.05, None])
    ended = [*seen[:-1], replace(seen[-1], state="failed")]
    assert first_epoch_tells(ended, RUNG, 1)
    assert not first_epoch_tells([*ended[:-2], *(replace(one, state="failed", at={}) for one in ended[-2:])], RUNG, 1)


@pytest.mark.parametrize("epochs", [1, 2, 3, 9, 15, 20, 27, 52, 100])
def test_epoch_one_comes_before_the_other_rungs(epochs: int) -> None:
    usual = decision_rungs(epochs)
    assert decision_rungs(epochs, least=1) in {usual, (1, *usual)}
