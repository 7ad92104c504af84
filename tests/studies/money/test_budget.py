"""Money: the budget binds at every committed moment, time is charged exactly once, and what was drained goes on."""

import functools
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.space import Space
from studies.control.controller import TICK_SECONDS
from studies.control.machine.state import StudyMachine
from studies.gangs.pool_protocol import Event
from studies.gangs.simulated import Curve, SimulatedPool
from studies.money.budget import BudgetClock, Forecaster, Limits, price_of, without_start
from studies.money.ledger import SlotMeter, cost_nano_usd
from studies.records.records import NANO
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.search.pruners.none import NoPruner
from tests.support.simulated_study import DAY, SimulatedStudy, check_ledger, checked, essence, noisy_curve, smooth_curve

patient = settings(deadline=None)
GANGS = Space.from_dict(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 256, "log": True},
        "world_size": {"type": "categorical", "choices": [1, 2]},
    }
)


class LatePool(SimulatedPool):
    """A machine that is busy now and then: what should happen at once happens up to 0.4 s later."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rng = random.Random(1)

    def wait(self, seconds: float) -> list[Event]:
        events = super().wait(seconds)
        if self.rng.random() < 0.6:
            self._now += self.rng.uniform(0.0, 0.4)
        return events


class StalledPool(SimulatedPool):
    """A machine that stands still once, for 0.3 s, when the budget ends."""

    stalls_at = math.inf

    def wait(self, seconds: float) -> list[Event]:
        events = super().wait(seconds)
        if self._now >= self.stalls_at and not self.stood_still:
            self.stood_still = True
            self._now += 0.3
        return events

    stood_still = False


def watch_money(study: SimulatedStudy, usd: float, slack: int = 0) -> list[tuple[int, int]]:
    """Look at what everybody can read after every commit; complain when it passes the budget."""
    seen = []

    def look(machine: StudyMachine) -> None:
        spent, reserved = study.committed_money()
        seen.append((spent, reserved))
        assert spent + reserved <= usd * NANO + slack, f"{spent} spent + {reserved} reserved > {usd}"
        assert machine.reserved_until <= max(machine.deadline, machine.now) + 1e-9
        assert spent == machine.spent_nano_usd

    study.on_commit = look
    return seen


# ---------------------------------------------------------------------- the budget binds


@pytest.mark.medium
@pytest.mark.parametrize(("seed", "slots"), [(0, 1), (3, 4)])
def test_spent_and_reserved_never_pass_the_budget(tmp_path: Path, seed: int, slots: int) -> None:
    space = GANGS if slots > 1 else None
    more: dict[str, Any] = {"space": space} if space else {}
    usd = 0.08 * slots
    study = SimulatedStudy(
        tmp_path, slots=slots, seed=seed, start_seconds=0.3, thaw_seconds=0.2, warm_up_seconds=0.7,
        curve=lambda params, world_size: noisy_curve(params, world_size, seed=seed), **more,
    )  # fmt: skip
    cut_short = 0
    for portion in (usd, 1.05 * usd, 1.3 * usd):  # more money, in small portions, and every cent of it is watched
        seen = watch_money(study, portion)
        machine = study.run(Limits(usd=portion))
        record = checked(study)
        assert (machine.state, machine.stop_reason) == ("closed", "budget_usd")
        assert seen[-1][1] == 0
        assert record.overshoot_nano_usd == 0
        cut_short += sum(trial.reason == "closed" for trial in record.trials)
    assert cut_short, "the money must have ended while gangs were running"
    assert record.cost_nano_usd > usd * NANO


@pytest.mark.medium
@pytest.mark.parametrize(("slots", "pool"), [(4, LatePool), (1, StalledPool)])
def test_a_late_watchdog_cuts_before_the_deadline_and_a_stall_is_recorded(tmp_path, slots, pool):
    """Whoever has looked late before looks ahead; what no delay before announced is at most one tick of the pool."""
    overshot = 0

    def growing(params: Any, world_size: int) -> Curve:
        """No forecast foresees epochs that take longer and longer."""
        smooth = smooth_curve(params, world_size)
        return Curve(metrics=smooth.metrics, epoch_seconds=tuple(0.4 * 1.7**epoch for epoch in range(27)))

    for seed in range(0, 6, 2):
        study = SimulatedStudy(
            tmp_path / str(seed), slots=slots, seed=seed, pool=pool, curve=growing, policy=Policy(pruner=NoPruner()),
            faults=DAY,
        )  # fmt: skip
        # Epochs end after 13.2, 22.8 and 39.2 s: the money, for 31 to 38.5 s, is gone within the last of them.
        usd = (0.031 + 0.0015 * seed) * slots
        StalledPool.stalls_at = usd * 1000 / slots - 0.01
        a_tick = cost_nano_usd(slots, TICK_SECONDS, study.price)
        watch_money(study, usd, slack=a_tick)
        machine = study.run(Limits(usd=usd))
        record = study.record()
        over = max(0, record.cost_nano_usd - round(usd * NANO))
        assert machine.overshoot_nano_usd == record.overshoot_nano_usd == over <= a_tick
        overshot += over > 0
        check_ledger(study)
    assert overshot == (3 if pool is StalledPool else 0)


def test_a_gang_that_passes_its_bound_gets_more_if_the_budget_has_it(tmp_path: Path) -> None:
    """One epoch takes twenty times as long as all before; that is no reason to lose it."""

    def curve(params: Any, world_size: int) -> Curve:
        smooth = smooth_curve(params, world_size, equal_epochs=True)
        return Curve(metrics=smooth.metrics, epoch_seconds=(*[1.0] * 10, 20.0, *[1.0] * 16))

    study = SimulatedStudy(tmp_path, slots=2, curve=curve, policy=Policy(pruner=NoPruner()))
    watch_money(study, 1.0)
    study.run(Limits(usd=1.0, trials=4))
    record = study.record()
    assert [trial.state for trial in record.started] == ["complete"] * 4
    assert not [c for c in record.charges if c.kind == "lost"]


def test_an_epoch_that_outlasts_the_budget_is_cut_and_goes_on_later(tmp_path: Path) -> None:
    def curve(params: Any, world_size: int) -> Curve:
        smooth = smooth_curve(params, world_size, equal_epochs=True)
        return Curve(metrics=smooth.metrics, epoch_seconds=(*[1.0] * 10, 300.0, *[1.0] * 16))

    study = SimulatedStudy(tmp_path, slots=1, curve=curve, policy=Policy(pruner=NoPruner()), faults=DAY)
    watch_money(study, 0.05)
    study.run(Limits(usd=0.05))
    record = study.record()
    assert record.overshoot_nano_usd == 0
    assert record.cost_nano_usd == pytest.approx(0.05 * NANO, abs=2)
    assert record.trials[0].reason == "closed"
    assert len(record.trials[0].epochs) == 10
    assert [c.seconds for c in record.charges if c.kind == "lost"] == [pytest.approx(40.0)]
    watch_money(study, 2.0)  # two more epochs like that one would fit, with a margin of one half
    study.run(Limits(usd=2.0, trials=1))
    record = checked(study)
    assert [trial.state for trial in record.started] == ["complete"]


@pytest.mark.medium
@pytest.mark.parametrize(("slots", "pruner"), [(1, NoPruner()), (3, MoAsha()), (8, NoPruner())])
def test_a_budget_of_ten_full_trials_is_used_to_nine_tenths(tmp_path: Path, slots: int, pruner: Any) -> None:
    """A tenth of the money left over, when more was asked for, is a tenth of the search not done."""
    usd = 10 * 27 * (0.5 + 64 / 128) * 3.6 / 3600
    study = SimulatedStudy(tmp_path, slots=slots, seed=slots, policy=Policy(pruner=pruner))
    study.run(Limits(usd=usd))
    assert study.record().cost_nano_usd / NANO / usd >= 0.9


# ---------------------------------------------------------------------- what was drained goes on


def equal_epochs(params: Any, world_size: int) -> Curve:
    return smooth_curve(params, world_size, equal_epochs=True)


CURVES: dict[str, Any] = {"equal": equal_epochs, "unequal": smooth_curve}


def policy_of(variant: str) -> Policy:
    return Policy(pruner=NoPruner() if variant == "none" else MoAsha(variant=variant))  # type: ignore[arg-type]


@functools.cache
def undisturbed(*, variant: str, sampler: str, curve: str, slots: int, trials: int, seed: int) -> dict[str, Any]:
    """What a study is that has all the money from the beginning."""
    with tempfile.TemporaryDirectory() as folder:
        study = SimulatedStudy(
            Path(folder), slots=slots, sampler=sampler, policy=policy_of(variant), curve=CURVES[curve], seed=seed
        )
        assert study.run(Limits(usd=1000.0, trials=trials)).stop_reason == "budget_trials"
        whole = essence(study.record())
        study.store.close()
        return whole


def check_portions(folder: Path, budgets: list[float], **of_study: Any) -> int:
    """Close at one budget after the other, then finish: the whole study is what it would have been without that.

    Args:
        of_study: As for `undisturbed`.

    Returns:
        How many trials were interrupted by the end of a budget.
    """
    more = {name: of_study[name] for name in ("slots", "sampler", "seed")}
    curve, policy, trials = CURVES[of_study["curve"]], policy_of(of_study["variant"]), of_study["trials"]
    study = SimulatedStudy(folder, policy=policy, curve=curve, **more)
    interrupted = 0
    for usd in budgets:
        watch_money(study, usd)
        machine = study.run(Limits(usd=usd, trials=trials))
        assert machine.stop_reason in {"budget_usd", "budget_trials"}
        interrupted += sum(trial.paused_by == "drain" for trial in machine.trials.values() if trial.state == "pruned")
    watch_money(study, 1000.0)
    assert study.run(Limits(usd=1000.0, trials=trials)).stop_reason == "budget_trials"
    record = checked(study)
    assert essence(record) == undisturbed(**of_study)
    study.store.close()
    return interrupted


@pytest.mark.medium
@pytest.mark.parametrize(
    ("budgets", "sampler", "variant"),
    [([0.031], "tpe", "stopping"), ([0.004, 0.0041, 0.0399, 0.04, 0.11], "random", "promotion")],
)  # fmt: skip
def test_one_slot_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, budgets: list[float], *, sampler: str, variant: str
) -> None:
    """Trials of different lengths: closing and reopening must change nothing but the bill for idle and lost time."""
    of_study = {"variant": variant, "sampler": sampler, "curve": "unequal", "slots": 1, "trials": 15, "seed": 5}
    assert check_portions(tmp_path, budgets, **of_study)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("slots", "sampler", "variant", "seed"),
    [
        (2, "random", "stopping", 0), (3, "tpe", "stopping", 1), (4, "random", "promotion", 2),
        (8, "tpe", "promotion", 3), (4, "random", "none", 0),
    ],
)  # fmt: skip
def test_several_slots_go_on_as_if_nothing_had_happened(
    tmp_path: Path, *, slots: int, sampler: str, variant: str, seed: int
) -> None:
    """Gangs that are in step: whichever of them were running when the money ended, all go on in the same order.

    A sampler that adapts may be asked earlier: the last seconds of a budget may start a trial that is cut.
    """
    budgets = [[0.021, 0.05, 0.0931], [0.1]][seed % 2]
    of_study = {"variant": variant, "sampler": sampler, "curve": "equal", "slots": slots, "trials": 20, "seed": seed}
    assert check_portions(tmp_path, budgets, **of_study)


any_portions = given(
    budgets=st.lists(st.floats(0.003, 0.2), min_size=1, max_size=3),
    slots=st.integers(1, 5),
    # A promoted trial that is cut in the last seconds goes on before others that have been promoted meanwhile.
    variant=st.just("stopping"),
    seed=st.integers(0, 2),
)


@pytest.mark.medium
@settings(deadline=None, max_examples=3)
@any_portions
def test_wherever_the_budget_ends_equal_epochs_go_on_equally(budgets, slots, variant, seed):
    check_equal_epochs(budgets, slots, variant, seed)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@any_portions
def test_wherever_the_budget_ends_equal_epochs_go_on_equally_many_times(budgets, slots, variant, seed):
    check_equal_epochs(budgets, slots, variant, seed)


def check_equal_epochs(budgets: list[float], slots: int, variant: str, seed: int) -> None:
    of_study = {"variant": variant, "sampler": "random", "curve": "equal", "slots": slots, "trials": 12, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        check_portions(Path(folder), sorted(budgets), **of_study)


def test_a_used_up_budget_starts_nothing(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path)
    study.run(Limits(usd=0.05))
    before, spent = essence(study.record()), study.record().cost_nano_usd
    machine = study.run(Limits(usd=spent / NANO))
    assert (machine.state, machine.stop_reason) == ("closed", "budget_usd")
    assert (essence(study.record()), study.record().cost_nano_usd) == (before, spent)


# ---------------------------------------------------------------------- other limits


@pytest.mark.medium
def test_hours_count_the_time_in_which_a_controller_was_alive(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=2)
    machine = study.run(Limits(hours=60 / 3600))
    assert (machine.state, machine.stop_reason) == ("closed", "budget_hours")
    assert 50 < study.clock <= 60
    study.clock += 5000.0  # nobody is there
    study.run(Limits(hours=100 / 3600))
    record = study.record()
    assert 90 < record.alive_seconds <= 100
    assert record.budget["hours"].spent <= 100 / 3600
    assert record.stop_reason == "budget_hours"
    check_ledger(study)


@pytest.mark.medium
def test_the_smaller_of_two_limits_ends_the_study(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, slots=2)
    assert study.run(Limits(hours=1.0, usd=0.05)).stop_reason == "budget_usd"
    assert study.run(Limits(hours=60 / 3600, usd=50.0)).stop_reason == "budget_hours"
    assert study.run(Limits(hours=1.0, usd=50.0, trials=20)).stop_reason == "budget_trials"


def test_trials_counts_started_ones(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path)
    machine = study.run(Limits(trials=7))
    record = study.record()
    assert machine.stop_reason == "budget_trials"
    assert len(record.started) == record.budget["trials"].spent == 7
    assert not [trial for trial in record.trials if trial.state == "queued" and trial.number is not None]


def test_a_trial_that_reaches_its_own_budget_is_pruned(tmp_path: Path) -> None:
    usd = 0.02
    study = SimulatedStudy(tmp_path, policy=Policy(pruner=NoPruner()))
    study.run(Limits(trials=12, usd_per_trial=usd))
    pruned = [trial for trial in study.record().trials if trial.state == "pruned"]
    complete = [trial for trial in study.record().trials if trial.state == "complete"]
    assert pruned
    assert complete
    for trial in pruned:
        assert "usd_per_trial" in trial.reason
        an_epoch = trial.epochs[-1].cost_nano_usd
        # The limit is noticed at the end of an epoch, when the next one may have begun.
        assert usd * NANO <= trial.paid_nano_usd <= usd * NANO + 2 * an_epoch
        assert trial.decisions[-1].action == "stop"
    assert all(trial.paid_nano_usd - trial.epochs[-1].cost_nano_usd < usd * NANO for trial in complete)


# ---------------------------------------------------------------------- the ledger's arithmetic


@patient
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 3), min_size=1), st.sampled_from(["start", "train", "lost", "idle"]),
                  st.floats(0.0, 100.0)),
        max_size=40,
    ),
    st.floats(0.01, 50.0),
)  # fmt: skip
def test_every_slot_second_lands_in_exactly_one_charge(spans: list[Any], price: float) -> None:
    meter, now = SlotMeter(slots=4, usd_per_slot_hour=price, opened_at=1000.0), 1000.0
    charges = []
    for slots, kind, seconds in spans:
        now += seconds
        charges += meter.charge(slots, kind, now)
    before_end = sum(charge.cost_nano_usd for charge in charges) + meter.uncharged_nano_usd(now)
    charges += meter.charge(range(4), "idle", now)
    assert sum(c.slots * c.seconds for c in charges) == pytest.approx(4 * (now - 1000.0), abs=1e-6)
    assert all(c.seconds > 0 for c in charges)
    exact = 4 * (now - 1000.0) * price * NANO / 3600
    assert sum(c.cost_nano_usd for c in charges) == pytest.approx(exact, abs=len(charges) + 1e-6 * exact)
    assert before_end == pytest.approx(exact, abs=len(charges) + 1 + 1e-6 * exact)
    assert not meter.charge(range(4), "idle", now), "time that is charged is not charged again"


def test_costs_are_whole_nano_dollars() -> None:
    assert cost_nano_usd(2, 1800.0, 3.0) == 3 * NANO
    assert cost_nano_usd(1, 1.0, 3.6) == 1_000_000
    assert isinstance(cost_nano_usd(3, 0.1234567, 0.04463), int)


def test_dollars_left_are_seconds_left() -> None:
    def clock(**more: Any) -> BudgetClock:
        common: dict[str, Any] = {
            "nano_usd_per_second": 4 * 3.6 * NANO / 3600, "opened_at": 100.0, "alive_since": 90.0, "spent_nano_usd": 0,
            "alive_seconds": 0.0, "limits": Limits(),
        }  # fmt: skip
        return BudgetClock(**{**common, **more})

    assert clock().deadline == math.inf
    assert clock(limits=Limits(usd=0.4)).deadline == pytest.approx(200.0)
    assert clock(limits=Limits(usd=0.4), spent_nano_usd=NANO // 5).deadline == pytest.approx(150.0)
    assert clock(limits=Limits(usd=0.4), spent_nano_usd=NANO).deadline == 100.0
    hours = clock(limits=Limits(usd=0.4, hours=60 / 3600), alive_seconds=10.0)
    assert (hours.deadline, hours.binding) == (pytest.approx(140.0), "budget_hours")


def test_forecasts_prefer_what_is_nearest() -> None:
    forecaster = Forecaster()
    assert forecaster.forecast(1, []) is None
    forecaster.saw_epoch(1, [2.0])
    forecaster.saw_start(1, 5.0)
    forecast = forecaster.forecast(2, [])
    assert (forecast.epoch_seconds, forecast.start_seconds) == (2.0, 5.0)
    forecaster.saw_epoch(2, [1.0])
    own = forecaster.forecast(2, [9.0, 1.0, 1.5, 1.2])
    others = forecaster.forecast(2, [])
    assert (own.epoch_seconds, others.epoch_seconds) == (1.2, 1.0)
    assert own.bound(2, starting=True) > own.bound(2, starting=False) > 2 * own.epoch_seconds


def test_a_programs_start_within_its_first_epoch_is_told_from_training() -> None:
    forecaster = Forecaster(has_start_in_epoch=True)
    for own in ([9.0], [9.0, 0.5], [9.0, 0.5, 0.5]):
        forecaster.saw_epoch(1, own)
    for _ in range(12):
        forecaster.saw_epoch(1, [9.0])  # of trials that ended after it
    for own, seconds in ([], 0.5), ([9.0, 0.5], 0.5), ([9.0, 0.5, 0.5, 2.0], 0.5), ([9.0], 0.9), ([12.0], 3.5):
        forecast = forecaster.forecast(1, own)
        assert (forecast.start_seconds, forecast.epoch_seconds) == (8.5, pytest.approx(seconds)), own
    restored = Forecaster(has_start_in_epoch=True)
    restored.saw_trial(1, [9.0, 0.5, 0.5])
    assert restored.forecast(1, []).epoch_seconds == 0.5
    assert restored.forecast(1, []).start_seconds == 8.5
    alone = Forecaster(has_start_in_epoch=True)
    alone.saw_epoch(1, [9.0])
    assert (alone.forecast(1, []).epoch_seconds, alone.forecast(1, []).start_seconds) == (pytest.approx(9.0), 0.0)
    task = Forecaster()
    for own in ([9.0], [9.0, 0.5], [9.0, 0.5, 0.5]):
        task.saw_epoch(1, own)
    assert task.forecast(1, [9.0]).start_seconds == 0.0
    assert task.forecast(1, [9.0]).epoch_seconds == 9.0


@pytest.mark.parametrize(
    ("own", "training"),
    [
        ([9.0], [9.0]),
        ([9.0, 3.0], [9.0, 3.0]),
        ([9.0, 2.0, 10.0], [2.0, 10.0]),
        ([40.0, 0.0, 0.001], [0.8, 0.8]),
    ],
    ids=["one", "no start", "long end", "printed together"],
)
def test_a_start_is_left_out_of_a_programs_epochs(own, training) -> None:
    assert list(without_start(own)) == training


def test_an_epoch_on_half_of_the_ranks_is_expected_to_take_twice_as_long() -> None:
    forecaster = Forecaster()
    forecaster.saw_start(2, 3.0)
    forecaster.saw_start(4, 5.0)
    forecaster.saw_epoch(4, [1.0])
    for own in ([], [1.0]):
        wide, narrow = forecaster.forecast(4, own), forecaster.forecast(4, own, ranks=2)
        assert (wide.epoch_seconds, wide.start_seconds) == (1.0, 5.0)
        assert (narrow.epoch_seconds, narrow.start_seconds) == (2.0, 3.0)
        assert narrow.deviation == wide.deviation


def test_the_chance_to_end_an_epoch_follows_what_is_known() -> None:
    forecaster = Forecaster()
    forecaster.saw_start(1, 1.0)
    for own in ([4.0], [4.0, 4.0], [4.0, 4.0, 4.0]):
        forecaster.saw_epoch(1, own)
    forecaster.saw_epoch(1, [8.0])
    own_forecast, of_others = forecaster.forecast(1, [4.0] * 5), forecaster.forecast(1, [])
    assert of_others.epoch_seconds == pytest.approx(math.sqrt(4.0 * 8.0)), "each trial counts once"
    assert own_forecast.chance(4.0, epochs=1, starting=False) == pytest.approx(0.5)
    assert own_forecast.chance(9.0, epochs=2, starting=True) == pytest.approx(0.5)
    assert own_forecast.chance(0.9, epochs=1, starting=True) == 0.0
    assert own_forecast.chance(3.0, epochs=1, starting=False) < 0.01
    # A configuration that was never trained may be much quicker than those before it.
    assert 0.1 < of_others.chance(3.0, epochs=1, starting=False) < 0.4


@pytest.mark.parametrize(
    ("name", "device"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA L40S", "L40S"), ("NVIDIA L4", "L4"), ("NVIDIA A10G", "A10G"),
     ("NVIDIA A100-SXM4-40GB", "A100"), ("GeForce RTX 9090", "unknown"), ("NVIDIA RTX A1000", "unknown"),
     ("NVIDIA L40", "unknown"), ("NVIDIA T400 4GB", "unknown"), ("NVIDIA GH200 480GB", "unknown")],
)  # fmt: skip
def test_list_prices_say_what_they_are_for(name: str, device: str) -> None:
    price = price_of("cuda", name, 1)
    assert device in price.source
    assert price.usd_per_slot_hour > 0


@pytest.mark.parametrize(("slice_", "share"), [("MIG 1g.10gb", 1), ("MIG 3g.40gb", 3), ("MIG 1c.2g.20gb", 2)])
def test_a_part_of_a_gpu_costs_its_part(slice_: str, share: int) -> None:
    """Seven slices of one GPU are no seven GPUs."""
    whole, part = (price_of("cuda", f"NVIDIA H100 80GB HBM3{name}", 1) for name in ("", f" {slice_}"))
    assert part.usd_per_slot_hour == pytest.approx(share / 7 * whole.usd_per_slot_hour)
    assert part.source.startswith(f"{share}/7 of H100: ")
    assert price_of("cpu", "", 4).usd_per_slot_hour == pytest.approx(4 * price_of("cpu", "", 1).usd_per_slot_hour)
