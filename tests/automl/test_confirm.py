"""`automl confirm`: fresh seeds, the test part, and the ledger."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from search_spaces.messages import StoppedError
from studies.control.machine.confirmation import PATIENCE_SECONDS, Retrained, SpentError, train_again
from studies.gangs.pool_protocol import DrainRequested, GangFailed, PoolError, PriceSet, SlotsLost, SlotsReady
from studies.gangs.simulated import Curve, SimulatedPool
from studies.simulation.memory_store import MemoryStore
from studies.spec.sections import FaultsSpec
from studies.storage.leases import lease as leases
from studies.storage.reading.reader import load_study
from studies.storage.schema import tables as t
from studies.storage.study_store import Store
from studies.storage.writing import retrying
from studies.storage.writing.changes import Change, Charged, Confirmed, PoolChanged, PoolRateChanged
from tests.support.command_line import DIGITS, InProcess, Workplace
from tests.support.ray_pool import LentPool
from tests.support.simulated_study import HoldingPool, confirming_machine, smooth_curve
from tests.support.stored_study import StoredStudy
from tests.support.trainer_pool import run_trial, spec_of
from trainers.checkpoints.checkpoint import rebuild
from trainers.contract.task_loading import load_task
from trainers.loop.evaluation import evaluate
from trainers.loop.trainer import Trainer
from trainers.protocol import TEST_PREFIX, NoTestPartError, ParameterValue, TrialSpec
from trainers.ranks.process_group import Group

EPOCHS = 4


def spec(seed: int, world_size: int = 1, *, at: tuple[int, ...] = (EPOCHS,), **params: ParameterValue) -> TrialSpec:
    return TrialSpec(
        study="s", trial=seed, task="digits", params={"learning_rate": 0.1, **params}, world_size=world_size, seed=seed,
        test_at=at,
    )  # fmt: skip


def curve(params: Mapping[str, Any], world_size: int) -> Curve:
    plain = smooth_curve(params, world_size, epochs=EPOCHS, equal_epochs=True)
    fails = {1: (2, params["fails"]), 2: (2, params["fails"])} if "fails" in params else None
    hangs = dict.fromkeys(range(1, int(params.get("hangs") or 0) + 1), 2)
    return replace(plain, fails_at=fails, completes_at={1: 3} if params.get("stops") else None, hangs_at=hangs)


class Ledger(MemoryStore):
    """Takes what is committed."""

    def __init__(self) -> None:
        super().__init__("s", {})
        self.charges: list[Charged] = []
        self.confirmed: list[Confirmed] = []
        self.pool: dict[str, Any] = {}

    def commit(self, study_id: int, lease_token: str | None, changes: Iterable[Change], **_: Any) -> None:
        for change in changes:
            match change:
                case Charged():
                    self.charges.append(change)
                case Confirmed():
                    self.confirmed.append(change)
                case PoolChanged():
                    self.pool |= change.columns
                case _:
                    assert isinstance(change, PoolRateChanged), "no trial of the study changes"

    @property
    def cost_nano_usd(self) -> int:
        return sum(charge.cost_nano_usd for charge in self.charges)

    @property
    def slot_seconds(self) -> float:
        return sum(charge.slots * charge.seconds for charge in self.charges)


def train(pool: SimulatedPool, *specs: TrialSpec, to: Ledger | None = None, on_end: Any = lambda _: None, **options: Any
          ) -> list[Retrained]:  # fmt: skip
    machine = confirming_machine(pool, *specs, **options)
    return train_again(machine, pool, to or Ledger(), study_id=1, lease_token=None, on_end=on_end)


def test_every_slot_second_is_charged_once_as_confirm() -> None:
    ledger, pool = Ledger(), SimulatedPool(curve, start_seconds=1.0, warm_up_seconds=3.0, opened_at=100.0)
    done = train(pool, spec(1), spec(2), spec(3, world_size=2), to=ledger)
    first, _, both = points = [one.at(EPOCHS) for one in done]
    # Two side by side, then the one of two ranks: 3 s of warm-up, twice a start of 1 s and 4 epochs.
    assert (ledger.pool["pool_opened_at"], ledger.pool["pool_closed_at"]) == (100.0, 113.0)
    assert {(c.kind, c.trial_id, c.attempt) for c in ledger.charges} == {("confirm", None, None)}
    assert ledger.slot_seconds == pytest.approx(2 * 13.0)
    assert ledger.cost_nano_usd == 2 * 13 * 10_000_000
    assert [one.spec.seed for one in done] == [one.seed for one in points] == [1, 2, 3]
    assert ledger.confirmed == points
    assert [(one.epochs, one.wall_seconds) for one in points] == [(4, 5.0)] * 3
    assert both.cost_nano_usd == 2 * first.cost_nano_usd == 2 * 5 * 10_000_000
    assert first.metrics == curve(spec(1).params, 1).metrics[-1]


@pytest.mark.parametrize("limit", ["most_nano_usd", "most_seconds"])
@pytest.mark.parametrize(("seconds", "over"), [(0.0, 0), (1.0, 0), (11.0, 2), (12.9, 2), (30.0, 3)])
def test_trainings_end_before_they_take_more_than_they_may(seconds: float, over: int, limit: str) -> None:
    """Two slots at a cent a second train two side by side until 8 s, and the third until 13 s."""
    most, ended = round(2 * seconds * 10_000_000), list[Retrained]()
    given: dict[str, Any] = {limit: most if limit == "most_nano_usd" else seconds}
    ledger, pool = Ledger(), SimulatedPool(curve, start_seconds=1.0, warm_up_seconds=3.0, opened_at=100.0)
    expected = nullcontext() if over == 3 else pytest.raises(SpentError, match=f"used up: {over} of 3 trainings have")
    with expected:
        train(pool, spec(1), spec(2), spec(3, 2), to=ledger, on_end=ended.append, **given)
    assert len(ended) == over
    assert ledger.cost_nano_usd <= most


def test_a_training_costs_what_its_slot_was_charged_when_the_price_was_set_meanwhile() -> None:
    ledger, pool = Ledger(), SimulatedPool(curve)
    pool._at(2.5, 0, PriceSet(usd_per_slot_hour=72.0))
    (trained,) = train(pool, spec(1), to=ledger, slots=1)
    assert trained.at(EPOCHS).cost_nano_usd == 10_000_000 * (2.5 + 2 * 1.5) == ledger.cost_nano_usd


def test_a_lost_training_gets_three_attempts_an_error_none_and_one_that_stops_improving_is_over() -> None:
    (one,) = train(SimulatedPool(curve), spec(1, at=(2, EPOCHS), stops=True))
    assert ([point.epochs for point in one.points], one.failure) == ([2, 3], "")
    ledger = Ledger()
    lost, wrong = train(SimulatedPool(curve), spec(1, at=(1, EPOCHS), fails="lost"), spec(2, fails="error"), to=ledger)
    assert (lost.spec.attempt, lost.at(EPOCHS).epochs, lost.failure) == (3, 4, "")
    assert [point.wall_seconds for point in ledger.confirmed] == [1.0, 4.0], "what was trained again is none of it"
    assert (wrong.spec.attempt, wrong.at(EPOCHS).epochs) == (1, 0)
    assert wrong.at(EPOCHS).cost_nano_usd == 1.5 * 10_000_000
    assert "simulated fault" in wrong.failure


def test_a_training_that_hangs_is_killed_and_trained_again() -> None:
    """Nothing watched these: a hang was charged until somebody pressed Ctrl-C."""
    ledger, faults = Ledger(), FaultsSpec(start_seconds=20.0, silence_seconds=10.0)
    once, always = train(SimulatedPool(curve), spec(1, hangs=1), spec(2, hangs=3), to=ledger, faults=faults)
    assert (once.spec.attempt, once.at(EPOCHS).epochs, once.failure) == (2, 4, "")
    assert (always.spec.attempt, always.at(EPOCHS).epochs) == (3, 0)
    assert "no rank reported for 40 s" in always.failure
    assert ledger.pool["pool_closed_at"] < 10 + 20 + 40 + 12


@pytest.mark.parametrize("reason", ["interrupted", "stopped", "error"])
def test_slots_that_are_too_few_or_go_away_end_it_with_all_charged(reason, monkeypatch, caplog):
    """So do a signal and `automl stop`: nothing waits for the end of an epoch."""
    with pytest.raises(PoolError, match="a training needs 3 slots, one for each rank, but the study has only 2"):
        train(SimulatedPool(curve), spec(1, world_size=3))
    refusing = SimulatedPool(curve)
    monkeypatch.setattr(refusing, "open", raising(PoolError("the cluster has no room")))
    with pytest.raises(PoolError, match="no room"):
        train(refusing, spec(1))
    assert caplog.text == "", "it is said once, by whoever catches that"
    ledger, pool = Ledger(), SimulatedPool(curve, warm_up_seconds=5.0)
    pool._at(7.25, -1, DrainRequested(reason=reason, message="so it is"))
    with pytest.raises(PoolError if reason == "error" else StoppedError, match="so it is") as caught:
        train(pool, spec(1), to=ledger)
    assert getattr(caught.value, "by_command", False) == (reason == "stopped")
    assert ledger.slot_seconds == pytest.approx(2 * 7.25)
    assert ledger.pool["pool_closed_at"] == 7.25


def raising(error: Exception) -> Callable[[int], None]:
    def open_pool(_slots: int) -> None:
        raise error

    return open_pool


class Brought(SimulatedPool):
    """Slots that a cluster's autoscaler brings."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.released: list[tuple[float, tuple[int, ...]]] = []

    def release(self, slots: tuple[int, ...]) -> None:
        self.released.append((self.now(), slots))


def test_slots_that_an_autoscaler_brings_are_charged_while_they_are_there_and_needed() -> None:
    """Nodes take five minutes, in which nothing is paid and nobody gives up; slot 1 goes after its second training."""
    ledger, pool = Ledger(), Brought(curve, warm_up_seconds=300.0)
    done = train(pool, spec(1), spec(2), spec(3), to=ledger, autoscale=True)
    assert [one.at(EPOCHS).epochs for one in done] == [4, 4, 4]
    assert pool.released == [(304.0, (1,))]
    assert ledger.slot_seconds == pytest.approx(2 * 4.0 + 4.0)
    assert (ledger.pool["pool_opened_at"], ledger.pool["pool_closed_at"]) == (0.0, 308.0)


def test_slots_that_wide_trainings_wait_for_are_kept_however_long_the_others_take_to_come() -> None:
    class Slow(Brought):
        def open(self, slots: int) -> None:
            self._at(1.0, 0, SlotsReady(slots=(0,)))
            self._at(900.0, 0, SlotsReady(slots=(1, 2, 3)))

    pool = Slow(curve)
    done = train(pool, spec(1, world_size=2), spec(2, world_size=2), slots=4, autoscale=True)
    assert [one.failure for one in done] == ["", ""]
    assert pool.now() == 904.0, "side by side"


class LosesNode(SimulatedPool):
    """Two of four slots are gone, with their node, from 3.5 s on, for a while or for good."""

    gone_seconds: float | None = None

    def open(self, slots: int) -> None:
        super().open(slots)
        self._at(3.5, -2, SlotsLost(slots=(2, 3), with_device=True))
        if self.gone_seconds is not None:
            self._at(3.5 + self.gone_seconds, -1, SlotsReady(slots=(2, 3)))

    def _happens(self, event: Any) -> list[Any]:
        if not isinstance(event, SlotsLost):
            return super()._happens(event)
        hit = [key for key, gang in self._gangs.items() if set(gang.slots) & {2, 3}]
        left = {slot for key in hit for slot in self._gangs.pop(key).slots} - {2, 3}
        lost = [GangFailed(trial_id=i, attempt=n, failure="lost", message="its node died") for i, n in hit]
        return [*lost, event, SlotsReady(slots=tuple(sorted(left)))]


def test_a_training_that_is_wider_than_what_a_lost_node_leaves_ends_it_once_nothing_else_trains() -> None:
    """It waited for the node for ever, and narrower trainings behind it with it."""
    ledger, ended = Ledger(), list[Retrained]()
    with pytest.raises(PoolError) as error:
        train(LosesNode(curve), spec(1, 4), spec(2, 2), spec(3), to=ledger, on_end=ended.append, slots=4)
    assert [(one.spec.seed, one.failure) for one in ended] == [(2, ""), (3, "")]
    assert str(error.value) == (
        "a node of the cluster was lost: 2 of 4 slots have devices, and 4 are needed (trials left: 1); finished "
        "trainings are charged and kept; run `automl confirm` with these trials again once the cluster has the devices"
    )
    gone = 3.5 + 4.0 + 4.0 + PATIENCE_SECONDS
    assert ledger.pool["pool_closed_at"] == pytest.approx(gone, abs=1.0)
    assert ledger.slot_seconds == pytest.approx(4 * 3.5 + 2 * (ledger.pool["pool_closed_at"] - 3.5))


def test_devices_that_come_back_in_time_are_waited_for() -> None:
    pool = LosesNode(curve)
    pool.gone_seconds = PATIENCE_SECONDS - 1.0
    (wide,) = train(pool, spec(1, world_size=4), slots=4)
    assert (wide.spec.attempt, wide.at(EPOCHS).epochs, wide.failure) == (2, 4, "")


def test_points_of_one_trial_share_a_training_and_are_paid_to_the_ends_of_their_epochs() -> None:
    """Confirming 1@2 and 1@3 trained twice, each time for all four epochs."""
    (one,) = train(SimulatedPool(curve), spec(1, at=(2, 3)), slots=1)
    assert [(point.epochs, point.wall_seconds) for point in one.points] == [(2, 2.0), (3, 3.0)]
    assert one.at(2).metrics == curve(spec(1).params, 1).metrics[1]
    assert one.at(2).cost_nano_usd == 2 * 10_000_000
    # Else 16@3 cost and took as much as 16@12, and neither `cheapest` nor `knee` could tell them apart.
    (one,) = train(HoldingPool(curve), spec(1, at=(1, 2, 3)), slots=1)
    assert [point.wall_seconds for point in one.points] == pytest.approx([1.0, 2.0, 3.0])
    assert [point.cost_nano_usd for point in one.points] == [10_000_000, 20_000_000, 30_000_000]


def test_models_are_kept_of_the_epochs_that_are_confirmed_and_no_file_is_deleted(tmp_path: Path) -> None:
    class Writing(SimulatedPool):
        def _boundary(self, boundary: Any) -> list[Any]:
            told = super()._boundary(boundary)
            for path in (Path(event.measurement.checkpoint or "") for event in told):
                path.touch() if path.name else None
            return told

    folder = str(tmp_path)
    kept = replace(spec(1, at=(2, EPOCHS), fails="lost"), milestones=(2, EPOCHS), checkpoint_folder=folder)
    (one,) = train(Writing(curve), kept)
    assert [point.checkpoint for point in one.points] == [f"{folder}/epoch-2", f"{folder}/epoch-4"]
    assert {path.name for path in tmp_path.iterdir()} == {"epoch-2", "epoch-4"}


def test_a_database_that_is_away_for_longer_than_a_moment_ends_no_training(tmp_path, monkeypatch):
    study, slept = StoredStudy(tmp_path), []
    lease = leases.acquire(study.store, study.id)
    assert isinstance(lease, leases.Lease)
    commit, left = study.store.commit, [1, *([0] * 12)]  # the pool is opened before

    def away(*arguments: Any, **more: Any) -> None:
        if left and not left.pop(0):
            raise OperationalError("commit", {}, Exception("the server closed the connection"))
        commit(*arguments, **more)

    monkeypatch.setattr(study.store, "commit", away)
    monkeypatch.setattr(time, "sleep", slept.append)
    study.trial()
    (trial,) = load_study(study.store, "small").started
    pool = SimulatedPool(curve)
    machine = confirming_machine(pool, replace(spec(1), trial=trial.id), slots=1)
    (one,) = train_again(machine, pool, study.store, study_id=study.id, lease_token=lease.token)
    assert (one.at(EPOCHS).epochs, one.failure, left) == (EPOCHS, "", [])
    assert sum(slept) > 2 * retrying.PATIENCE_SECONDS
    record = load_study(study.store, "small")
    assert sum(charge.cost_nano_usd for charge in record.charges) == machine.spent_nano_usd > 0
    assert (record.state, [one.state for one in record.trials]) == ("running", ["running"]), "as they were"


def test_epochs_that_are_asked_for_have_the_metrics_of_the_test_part() -> None:
    wanted = TrialSpec(study="s", trial=0, task="digits", params={}, training={"epochs": 3}, test_at=(1,))
    measured = Trainer(wanted, load_task("digits"), group=Group()).advance(3)
    assert [bool(on_the_test_part(one)) for one in measured] == [True, False, True]


def on_the_test_part(measurement: Any) -> dict[str, float]:
    return {
        name.removeprefix(TEST_PREFIX): value
        for name, value in measurement.metrics.items()
        if name.startswith(TEST_PREFIX)
    }


def test_only_the_last_epoch_has_the_metrics_of_the_test_part() -> None:
    digits = load_task("digits")
    wanted = TrialSpec(study="s", trial=0, task="digits", params={}, training={"epochs": 2}, test_at_end=True)
    trainer = Trainer(wanted, digits, group=Group())
    first, last = trainer.advance(2)
    weights = {name: value.clone() for name, value in trainer.module.state_dict().items()}
    model = rebuild("here", digits, {}, weights)
    assert on_the_test_part(first) == {}
    assert on_the_test_part(last) == pytest.approx(evaluate(model, digits, {}, part="test"))
    assert on_the_test_part(last)["val_error"] != last.metrics["val_error"]


def test_ranks_share_the_test_part(ranks: Any) -> None:
    spec_two = TrialSpec(
        study="s", trial=0, task="digits", params={"batch_per_rank": 32}, training={"epochs": 1}, world_size=2,
        test_at_end=True,
    )  # fmt: skip
    spec_one = replace(spec_two, params={"batch_per_rank": 64}, world_size=1)
    done = ranks.run(2, run_trial, spec_two)[0], run_trial(Group(), spec_one)
    two, one = (on_the_test_part(each["measurements"][-1]) for each in done)
    assert two == pytest.approx(one, abs=1e-5)


def test_a_task_without_a_test_part_is_measured_without() -> None:
    blobs = spec_of(test_at_end=True)
    task = load_task(blobs.task, blobs.task_options, blobs.python_path)
    *_, last = Trainer(blobs, task, group=Group()).advance(99)
    assert on_the_test_part(last) == {}

    def none(_params: object) -> None:
        raise NoTestPartError("found no test rows")

    task.test_data = none  # type: ignore[attr-defined]
    *_, last = Trainer(blobs, task, group=Group()).advance(99)
    assert on_the_test_part(last) == {}


def test_a_study_that_is_driven_is_left_alone(tmp_path, capsys, monkeypatch):
    study = StoredStudy(tmp_path)
    study.trial(epochs=2)
    place = InProcess(tmp_path, capsys, monkeypatch)
    study.taken_by(os.getpid())
    code, out, err = place.run("confirm", "small", "0")
    assert (code, out) == (2, "")
    assert f"the study still runs in process {os.getpid()} on" in err.splitlines()[-2]
    assert load_study(study.store, "small").charges == ()


def test_what_older_versions_have_confirmed_is_that_of_the_last_epoch(tmp_path: Path) -> None:
    study = StoredStudy(tmp_path)
    study.trial(epochs=6)
    (trial,) = load_study(study.store, "small").started
    row = Confirmed(
        trial_id=trial.id, seed=5, epoch=6, epochs=6, metrics={"val_error": 0.5}, wall_seconds=1.0, cost_nano_usd=0,
        checkpoint=None, at=1.0,
    )  # fmt: skip
    study.store.commit(study.id, None, [row])
    with study.store.engine.begin() as connection:
        connection.execute(sa.update(t.confirmations).values(epoch=None))
    assert [one.epoch for one in load_study(study.store, "small").confirmations] == [6]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["7"], "trial: found 7, allowed: 0 to 0"),
        (["0@0"], "0@0: small trains epochs 1 to 6\nName for example 0@6"),
        (["0@9"], "0@9: small trains epochs 1 to 6\nName for example 0@6"),
        (["best"], "'best' cannot be chosen, because small has no saved models yet"),
        (["worst"], "trial: found 'worst', allowed: TRIAL"),
        ([], "small has no saved models to choose from\nName the trials to confirm"),
        (["0", "--seeds", "0"], "'--seeds': 0 is not in the range x>=1"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, capsys, monkeypatch, arguments, words):
    StoredStudy(tmp_path).trial(epochs=2)
    code, _, err = InProcess(tmp_path, capsys, monkeypatch).run("confirm", "small", *arguments)
    assert (code, words in err) == (2, True), err


@pytest.mark.ray
def test_the_winners_luck_becomes_visible_and_is_paid_for(tmp_path: Path, warm_pool: LentPool) -> None:
    """The budget is nearly gone when the study closes; what was ordered goes beyond it, and the study says so."""
    place = Workplace(tmp_path, warm_pool)
    launched = place.json("launch", place.spec(DIGITS, training={"epochs": 3}, budget={"usd": 1.0, "trials": 4}))
    store = Store(f"sqlite:///{place.folder}/automl.db")
    row = store.require("small")
    store.change_spec(row.id, {**row.spec, "budget": {**row.spec["budget"], "usd": launched["cost_usd"] * 1.001}})
    best = min(launched["archive"], key=lambda point: point["values"]["val_error"])
    winner, epoch = best["trial"], best["epoch"]
    done = place.run("confirm", "small", "best", "--seeds", "2", "--json")
    confirmed = json.loads(done.stdout)
    (trial,) = confirmed["trials"]
    said = re.match(
        rf"confirm trains {winner}@{epoch} as it was trained, with 2 fresh seeds each: about \$([\d.e-]+) \(",
        done.stderr,
    )
    assert said, done.stderr
    predicted = float(said[1])
    assert confirmed["cost_usd"] / 5 < predicted < confirmed["cost_usd"] * 5, "it was 1/18"
    assert (trial["trial"], trial["epoch"], confirmed["measured_on"]) == (winner, epoch, "test")
    assert [run["epochs"] for run in trial["runs"]] == [epoch] * 2
    assert trial["search"]["val_error"] == best["values"]["val_error"]
    errors = trial["test"]["val_error"]["values"]
    assert len(errors) == len({run["seed"] for run in trial["runs"]}) == 2
    assert trial["test"]["val_error"]["mean"] == pytest.approx(sum(errors) / 2)
    assert trial["test"]["val_error"]["deviation"] == pytest.approx(abs(errors[0] - errors[1]) / 2**0.5)
    assert trial["validation"]["cost_usd"]["mean"] > 0
    after = place.json("status", "small")
    assert after["charges"]["confirm"] == pytest.approx(confirmed["cost_usd"])
    assert after["cost_usd"] == pytest.approx(launched["cost_usd"] + confirmed["cost_usd"])
    assert after["overshoot_usd"] == pytest.approx(after["cost_usd"] - launched["cost_usd"] * 1.001, abs=1e-9)
    for same in ("state", "trials", "front"):
        assert after[same] == launched[same]
    told = [one.pop("confirmed") for one in after["archive"]]
    assert after["archive"] == launched["archive"]
    (stored,) = [one for one in told if one is not None]
    assert stored["metrics"]["val_error"] == trial["test"]["val_error"]
    mean = trial["test"]["val_error"]["mean"]
    shown = place.run("status", "small").stdout
    assert "confirmed val_error" in shown
    assert f"{100 * mean:.3g} %" in shown
    assert f"@{epoch}: " in place.run("trials", "small").stdout
    assert all(view.behind == 0 for view in load_study(store, "small").views)
    assert "· confirmed: " in (place.folder / "artifacts" / "small" / "report.html").read_text()
    store.close()
