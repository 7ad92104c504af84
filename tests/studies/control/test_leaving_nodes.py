"""Nodes that die or will be taken away, in virtual time: what the state machine does with the gangs on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search_spaces.space import Space
from studies.control.machine.live_study import params_on, ranks_for
from studies.control.machine.live_trials import Trial, restored
from studies.control.machine.next_trial import MOST_TOO_WIDE, narrowed
from studies.control.machine.state import StudyMachine
from studies.control.machine.study_setup import StudySetup
from studies.gangs.pool_protocol import SlotsLeaving, SlotsLost, SlotsReady
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import Limits
from studies.records.records import NANO, OWN_CHARGES
from studies.search.samplers.suggester import Suggestion
from studies.storage.reading.reader import load_resume_state
from tests.studies.control.test_controller import EVERY_TRIAL, MIXED, LosesNode
from tests.support.simulated_study import SPACE, SimulatedStudy, check_epochs, smooth_curve


class Preempted(SimulatedPool):
    """Two of four slots will be gone, which is announced at 10 s; each is gone once its gang has given it back."""

    leaving: frozenset[int] = frozenset()

    def open(self, slots: int) -> None:
        super().open(slots)
        self._at(10.25, -2, SlotsLeaving(slots=(0, 1)))
        self._at(100.0, -1, SlotsReady(slots=(0, 1)))

    def _happens(self, event: Any) -> list[Any]:
        if isinstance(event, SlotsLeaving):
            self.leaving = frozenset(event.slots)
        if isinstance(event, SlotsReady):
            self.leaving -= set(event.slots)
        return super()._happens(event)

    def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
        assert not self.leaving & set(slots), "a trial was started on a slot that will be gone"
        super().start(trial_id, spec, slots, until)

    def end(self, trial_id: int, attempt: int, retire: tuple[int, ...] = ()) -> None:
        held = self._gangs[trial_id, attempt].slots
        super().end(trial_id, attempt, retire)
        if gone := self.leaving & set(held):
            self._at(0.0, 10**6, SlotsLost(slots=tuple(sorted(gone)), with_device=True))


@pytest.mark.medium
@pytest.mark.parametrize("space", [SPACE, MIXED])
def test_gangs_on_slots_that_will_be_gone_end_their_epochs_and_go_on_elsewhere(tmp_path: Path, space: Space) -> None:
    study = SimulatedStudy(
        tmp_path, pool=Preempted, policy=EVERY_TRIAL, slots=4, epochs=27, curve=equal_epochs, space=space
    )
    machine: StudyMachine = study.run(Limits(trials=12))
    record = study.record()
    check_epochs(record)
    assert [trial.state for trial in record.started] == ["complete"] * 12
    assert not machine._live.leaving
    assert "lost" not in [charge.kind for charge in record.charges], "an epoch was lost in spite of the notice"
    attempts = [attempt for trial in record.started for attempt in trial.attempts]
    pauses = [one.ended_at.timestamp() for one in attempts if one.ended_at and one.outcome == "paused"]
    assert 10.25 < max(pauses) <= 11.0
    charged = sum(charge.slots * charge.seconds for charge in record.charges)
    assert charged == pytest.approx(4 * study.clock - 2 * 89.0)


def equal_epochs(params: Any, world_size: int) -> Curve:
    return smooth_curve(params, world_size, epochs=27, equal_epochs=True)


def wide_study(folder: Path, pool: type[SimulatedPool], on_lost_node: str, *, curve: Any) -> SimulatedStudy:
    """A study on four slots whose trials have four ranks each."""

    class Wide(SimulatedStudy):
        def _setup(self, limits: Limits) -> StudySetup:
            return replace(super()._setup(limits), on_lost_node=on_lost_node, world_sizes=(1, 2, 4))

    only_wide = Space.from_dict({**MIXED.to_dict(), "world_size": {"type": "categorical", "choices": [4]}})
    return Wide(folder, pool=pool, policy=EVERY_TRIAL, slots=4, epochs=27, space=only_wide, curve=curve)


@pytest.mark.parametrize("on_lost_node", ["wait", "shrink"])
def test_wide_trials_of_a_dead_node_wait_for_it_or_go_on_with_fewer_ranks(tmp_path: Path, on_lost_node: str) -> None:
    started: list[Any] = []

    class Noted(LosesNode):
        def start(self, trial_id: int, spec: Any, slots: tuple[int, ...], until: int) -> None:
            started.append(spec)
            super().start(trial_id, spec, slots, until)

    study = wide_study(tmp_path, Noted, on_lost_node, curve=equal_epochs)
    study.run(Limits(trials=3))
    record = study.record()
    check_epochs(record)
    assert [(trial.state, trial.world_size) for trial in record.started] == [("complete", 4)] * 3
    sizes = [[attempt.world_size for attempt in trial.attempts] for trial in record.started]
    assert sizes == ([[4, 2], [4], [4]] if on_lost_node == "shrink" else [[4, 4], [4], [4]])
    batches = {spec.world_size * spec.params.get("accumulate", 1) for spec in started}
    assert batches == {4}, "a step took another number of samples"
    charged = sum(charge.slots * charge.seconds for charge in record.charges)
    assert charged == pytest.approx(4 * study.clock - 2 * 290.0)


def test_epochs_on_fewer_ranks_count_for_the_ranks_that_they_had(tmp_path: Path) -> None:
    """They take longer, and were taken for epochs of all ranks: twice as dear as they were, and as long."""

    def curve(params: Any, world_size: int) -> Curve:
        return replace(equal_epochs(params, world_size), epoch_seconds=(4.0 / world_size,) * 27)

    said: list[tuple[int, float | None]] = []

    def note(machine: StudyMachine) -> None:
        said.extend(
            (len(trial.attempt.slots), forecast.epoch_seconds)
            for trial in machine.running
            if trial.attempt and trial.epochs_done and (forecast := machine._live.account.forecast(trial))
        )

    study = wide_study(tmp_path, LosesNode, "shrink", curve=curve)
    study.on_commit = note
    machine = study.run(Limits(trials=3))
    record = study.record()
    assert [attempt.world_size for attempt in record.started[0].attempts] == [4, 2]
    assert {round(epoch.wall_seconds) for epoch in record.started[0].epochs} == {1, 2}
    assert set(said) == {(4, 1.0), (2, 2.0)}
    fresh = machine._live.account.forecaster.forecast(4, [])
    assert fresh.epoch_seconds == pytest.approx(1.0)
    prices = [shot.usd_per_epoch for shot in machine._live.look().trials]
    assert prices == pytest.approx([4 * 3.6 / 3600] * 3)
    stored = load_resume_state(study.store, study.study_id, before_lease=-1)
    again = {one.record.id: restored(one) for one in stored.trials}
    assert {i: one.epoch_ranks for i, one in again.items()} == {i: t.epoch_ranks for i, t in machine.trials.items()}
    assert [one.snapshot(3.6).usd_per_epoch for one in again.values() if one.number is not None] == prices
    paid = [trial.paid_nano_usd / NANO for trial in record.started]
    assert [shot.paid_usd for shot in machine._live.look().trials] == pytest.approx(paid)
    assert [one.snapshot(3.6).paid_usd for one in again.values() if one.number is not None] == pytest.approx(paid)
    trained = sum(charge.slots * charge.seconds for charge in record.charges if charge.kind in OWN_CHARGES)
    assert machine._live.account.trained_slot_seconds == pytest.approx(trained)
    resumed = StudyMachine(machine.setup, stored, alive_since=0.0, pick=lambda free, _: free, worn=lambda _: ())
    assert resumed._live.account.trained_slot_seconds == pytest.approx(trained)


@pytest.mark.parametrize(
    ("options", "most", "sizes", "ranks"),
    [
        ({}, 3, (1, 2, 4), 2), ({}, 3, None, 2), ({"accumulate": 3}, 3, None, 3), ({}, 2, (3, 4), 4),
        ({}, 1, (1, 4), 1), ({"shard": "full"}, 3, None, 4),
    ],
)  # fmt: skip
def test_fewer_ranks_take_the_same_samples_in_each_step(
    options: dict[str, Any], most: int, sizes: tuple[int, ...] | None, ranks: int
) -> None:
    setup: Any = SimpleNamespace(on_lost_node="shrink", world_sizes=sizes, training={"accumulate": 1})
    trial = Trial(id=1, number=0, state="paused", params=options, world_size=4, origin="sampler")
    assert ranks_for(setup, trial, most) == ranks
    assert ranks * params_on(setup, trial, ranks).get("accumulate", 1) == 4 * options.get("accumulate", 1)
    assert ranks_for(setup, replace(trial, number=None), most) == 4


def test_slots_that_join_are_used_and_paid_for_from_then_on_and_shorten_a_budget_of_dollars(tmp_path: Path) -> None:
    class Grows(SimulatedPool):
        """Two slots come to the two that there are, at 30 s."""

        def open(self, slots: int) -> None:
            super().open(slots)
            self._at(30.0, -1, SlotsReady(slots=(3, 2)))

    study = SimulatedStudy(
        tmp_path, pool=Grows, policy=EVERY_TRIAL, slots=2, epochs=9, price=3.6,
        curve=lambda params, size: smooth_curve(params, size, epochs=9, equal_epochs=True),
    )  # fmt: skip
    machine = study.run(Limits(usd=0.1))  # 100 s of one slot: 60 in 30 s of two, then 40 in 10 s of four
    record = study.record()
    check_epochs(record)
    assert study.clock == pytest.approx(40.0, abs=1.5)
    assert record.cost_nano_usd <= 0.1 * NANO
    assert machine._live.slots == 4
    used = {slot for trial in record.started for attempt in trial.attempts for slot in attempt.slots}
    assert used == {0, 1, 2, 3}
    charged = sum(charge.slots * charge.seconds for charge in record.charges)
    assert charged == pytest.approx(4 * study.clock - 2 * 30.0)


class LosesNodeForGood(LosesNode):
    """Two of four slots are gone from 10 s on, and do not come back."""

    def open(self, slots: int) -> None:
        SimulatedPool.open(self, slots)
        self._at(10.0, -1, SlotsLost(slots=(2, 3), with_device=True))


@pytest.mark.medium
def test_slots_that_are_left_train_to_the_end_of_the_budget(tmp_path: Path) -> None:
    """Once eight wide suggestions waited for the node none was asked for any more: the rest of the budget was idle."""
    study = SimulatedStudy(tmp_path, pool=LosesNodeForGood, policy=EVERY_TRIAL, slots=4, epochs=27, space=MIXED)
    machine = study.run(Limits(usd=1.0))
    record = study.record()
    check_epochs(record)
    assert machine.stop_reason == "budget_usd"
    idle_usd = sum(charge.cost_nano_usd for charge in record.charges if charge.kind == "idle") / 1e9
    assert idle_usd < 0.3
    waiting = [trial.world_size for trial in record.trials if trial.number is None]
    assert waiting.count(4) == MOST_TOO_WIDE, "wide configurations wait, and are not given up"


def test_configurations_that_the_spec_names_wait_for_the_node_as_they_are(tmp_path: Path) -> None:
    named = tuple({"learning_rate": 0.1, "width": 20 + place, "world_size": 4} for place in range(12))
    study = SimulatedStudy(
        tmp_path, pool=LosesNodeForGood, policy=EVERY_TRIAL, slots=4, epochs=27, space=MIXED, baselines=named,
        curve=equal_epochs,
    )  # fmt: skip
    study.run(Limits(usd=0.3))
    trials = study.record().trials
    assert [dict(trial.params) for trial in trials[:12]] == list(named)
    assert [trial.world_size for trial in trials[12:]].count(4) == 0
    assert sum(trial.state == "complete" for trial in trials[12:]) > 2


def test_a_narrowed_suggestion_is_one_of_the_space() -> None:
    """Parameters that hang from the world size are those of the smaller one."""
    space = Space.from_dict(
        {
            "world_size": {"type": "categorical", "choices": [1, 2, 4]},
            "momentum": {"type": "float", "low": 0.1, "high": 0.9},
            "shards": {"type": "int", "low": 1, "high": 4, "when": {"world_size": 4}},
            "accumulate": {"type": "int", "low": 1, "high": 4, "when": {"world_size": [1, 2]}},
        }
    )
    setup: Any = SimpleNamespace(space=space, seed=0)
    wide = Suggestion(params={"world_size": 4, "momentum": 0.5, "shards": 3}, trial_attributes={"a": 1})
    narrow = narrowed(setup, wide, 2, 7)
    space.check(narrow.params)
    assert (narrow.params["world_size"], narrow.params["momentum"]) == (2, 0.5)
    assert narrow.trial_attributes == {"a": 1}
    assert narrowed(setup, narrow, 2, 8) is narrow


def test_a_narrowed_suggestion_keeps_the_constraints_or_waits() -> None:
    form = {"world_size": [1, 2, 4], "batch_per_rank": (8, 256)}
    linked = Space.from_dict({**form, "constraints": ["world_size * batch_per_rank == 256"]})
    setup: Any = SimpleNamespace(space=linked, seed=0)
    wide = Suggestion(params={"world_size": 4, "batch_per_rank": 64})
    assert narrowed(setup, wide, 2, 7).params == {"world_size": 2, "batch_per_rank": 128}
    setup.space = Space.from_dict({**form, "constraints": ["world_size > 2"]})
    assert narrowed(setup, wide, 2, 7) is wide
