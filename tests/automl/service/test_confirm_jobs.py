"""Jobs that confirm models: what a run has trained is there for the next one, and what is asked for stays the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from automl.confirming import confirm
from automl.service.http_errors import ConflictError, ForbiddenError
from automl.service.operator_policy import Policy
from automl.service.team_studies import TeamStudies
from automl.service.workers import confirm_jobs, job_process
from automl.service.workers.confirm_jobs import run_confirm_job
from search_spaces.messages import StoppedError
from studies.gangs.pool_protocol import DrainRequested
from studies.gangs.simulated import Curve, SimulatedPool
from studies.queueing.access_tokens import Identity
from studies.queueing.job_queue import JobQueue, Submission
from studies.queueing.jobs import Job, RunOutcome
from studies.queueing.turns import Start
from studies.records.records import NANO
from studies.spec.spec_errors import SpecError
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError
from tests.support.service import TestedService, plain_submission
from tests.support.simulated_study import smooth_curve
from tests.support.stored_study import StoredStudy
from trainers.protocol import TrialSpec

WIDE = {"world_size": {"type": "categorical", "choices": [1, 2]}}


def curve(params: Mapping[str, Any], world_size: int) -> Curve:
    plain = smooth_curve(params, world_size, epochs=6, equal_epochs=True)
    return Curve(metrics=plain.metrics, epoch_seconds=plain.epoch_seconds)


class Pool(SimulatedPool):
    """A pool in virtual time of the two slots of a trial, which notes the seeds of what starts on it."""

    def __init__(self, seeds: list[int]) -> None:
        super().__init__(curve)
        self._seeds = seeds

    def start(self, trial_id: int, spec: TrialSpec, slots: tuple[int, ...], until: int) -> None:
        self._seeds.append(spec.seed)
        super().start(trial_id, spec, slots, until)


class Confirming:
    """A stored study of one trial, and a worker whose pools are in virtual time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        price = {"slots": 2, "price_per_slot_hour": 36.0}
        self.study = StoredStudy(folder, resources=price, mlflow="off")
        self.study.trial(epochs=4, checkpoints=(2, 4), state="complete")
        self.queue = JobQueue(self.study.store)
        self.worker = self.queue.register("w", device="cpu", slots=2)
        self.started: list[int] = []
        self.pool = Pool(self.started)
        monkeypatch.setattr("automl.confirming.pool_of", lambda _prepared: self._new_pool())
        for module in ("automl.confirming", "automl.service.workers.confirm_jobs"):
            monkeypatch.setattr(f"{module}.refresh", lambda *_: True)  # reports take seconds each

    def _new_pool(self) -> Pool:
        self.pool = Pool(self.started)
        return self.pool

    def submit(self, *points: str, limit_nano_usd: int = NANO) -> None:
        asked = {"study": "small", "points": list(points), "seeds": 3}
        self.queue.submit(
            Submission(kind="confirm", study="small:confirm-1", project="p", user="bob", spec=asked, base_folder="/",
                       slots=2, limit_nano_usd=limit_nano_usd)
        )  # fmt: skip

    def begin(self) -> Job:
        turn = self.queue.take_turn(self.worker, 2)
        assert isinstance(turn, Start)
        return turn.job

    def run(self, job: Job, *, drained_after: int | None = None) -> tuple[RunOutcome, str]:
        """Run a job, which is asked to drain once some trainings are over."""
        over: list[str] = []

        def log(line: str, **_fields: Any) -> None:
            over.extend([line] if ", seed " in line else [])
            if len(over) == drained_after:
                self.pool.post(DrainRequested(reason="interrupted"))

        return run_confirm_job(self.queue, job, log)

    def end(self, job: Job, outcome: RunOutcome) -> None:
        self.queue.end_run(job.run.id, outcome)


@pytest.fixture
def confirming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Confirming:
    return Confirming(tmp_path, monkeypatch)


@pytest.mark.medium
def test_a_job_that_was_drained_trains_what_is_left(confirming: Confirming) -> None:
    confirming.submit("0@4")
    first = confirming.begin()
    with pytest.raises(StoppedError):
        confirming.run(first, drained_after=1)
    confirming.end(first, "preempted")
    (done,) = load_study(confirming.study.store, "small").confirmations
    assert confirming.started[0] == done.seed
    before = len(confirming.started)
    assert confirming.run(confirming.begin()) == ("done", "")
    assert len(confirming.started) == before + 2
    assert done.seed not in confirming.started[before:]
    record = load_study(confirming.study.store, "small")
    assert len(record.confirmations) == 3
    assert sum(one.cost_nano_usd for one in record.confirmations) <= record.cost_nano_usd
    assert confirming.queue.require("small:confirm-1").spent_nano_usd == record.cost_nano_usd


@pytest.mark.parametrize(("reason", "outcome", "state"), [
    ("stopped", "stopped", "stopped"),
    ("interrupted", "preempted", "queued"),
])  # fmt: skip
def test_a_confirmation_that_automl_stop_ends_spends_nothing_more(confirming, monkeypatch, reason, outcome, state):
    confirming.submit("0@4")

    def log(line: str, **_fields: Any) -> None:
        if ", seed " in line:
            confirming.pool.post(DrainRequested(reason=reason))

    monkeypatch.setattr(job_process, "writer", lambda **_: log)
    job = confirming.begin()
    assert job_process.run(confirming.study.store, job.run.id) == outcome
    assert confirming.queue.require(job.study).state == state
    assert isinstance(confirming.queue.take_turn(confirming.worker, 2), Start) == (state == "queued")


@pytest.mark.medium
def test_a_job_that_was_lost_behind_its_last_training_trains_nothing(confirming: Confirming) -> None:
    confirming.submit("0@2", "0@4")
    first = confirming.begin()
    confirming.run(first)
    confirming.end(first, "lost")
    cost = load_study(confirming.study.store, "small").cost_nano_usd
    assert confirming.run(confirming.begin()) == ("done", "")
    record = load_study(confirming.study.store, "small")
    assert (len(confirming.started), len(record.confirmations), record.cost_nano_usd) == (3, 6, cost)


@pytest.mark.medium
def test_a_confirmation_whose_money_is_used_up_goes_on_with_more(confirming: Confirming) -> None:
    confirming.submit("0@4", limit_nano_usd=NANO * 15 // 100)  # of 0.24
    first = confirming.begin()
    outcome, reason = confirming.run(first)
    assert (outcome, reason) == (
        "failed",
        "the money for the confirmation is used up: 1 of 3 trainings have ended. Give more money",
    )
    confirming.end(first, "failed")
    before, spent = len(confirming.started), confirming.queue.require("small:confirm-1").spent_nano_usd
    bob, ann = (
        TeamStudies(confirming.study.store, Policy(code_folders={}, artifacts="a"), identity)
        for identity in (Identity(user=user, project="p", role="member", token_id=1) for user in ("bob", "ann"))
    )
    with pytest.raises(ForbiddenError, match="this study belongs to bob"):
        ann.resume("small:confirm-1", ("budget.usd=1",))
    wrong = {"budget.trials=9": "budget.usd", "faults.crash.retries=1": "budget.usd", "budget.usd=true": "found true",
             f"budget.usd={spent / NANO}": "a number above the", "budget.usd=null": "found null"}  # fmt: skip
    for override, problem in wrong.items():
        with pytest.raises(SpecError, match=problem):
            bob.resume("small:confirm-1", (override,))
    assert bob.resume("small:confirm-1", ("budget.usd=1",)).limit_nano_usd == NANO
    assert confirming.run(confirming.begin()) == ("done", "")
    assert len(confirming.started) - before == 2
    assert len(load_study(confirming.study.store, "small").confirmations) == 3


@pytest.mark.medium
def test_another_job_and_whoever_calls_the_command_again_have_all_trained_again(confirming: Confirming) -> None:
    for _ in range(2):
        confirm(confirming.study.store, "small", ["0@4"], seeds=3, keeps_models=False, say=lambda _line: None)
    assert len(confirming.started) == 6
    confirming.submit("0@4")
    confirming.run(confirming.begin())
    assert len(confirming.started) == 9


def ended_study(service: TestedService, slots: int | None = 2, **sections: Any) -> None:
    """Let there be a study of Ann that was stopped, with a complete trial."""
    service.queue.ask(service.queue.submit(plain_submission("small", slots=slots, limit_nano_usd=1)), "stop")
    StoredStudy(service.folder, **sections).trial(epochs=4, checkpoints=(2, 4), state="complete")


def test_a_job_keeps_the_points_that_were_meant_when_it_was_submitted(service: TestedService) -> None:
    """What its first run confirms may change which model is recommended."""
    ended_study(service)
    with pytest.raises(StoreError, match="trial: found 7, allowed: 0 to 0"):
        confirm_jobs.submit(service.studies(), "small", ["7"], 3, 1.0)
    asked, _ = service.queue.spec_of(confirm_jobs.submit(service.studies(), "small", (), 3, 1.0))
    assert asked["points"] == ["0@4"]


def test_a_study_that_is_being_confirmed_is_not_resumed(service: TestedService) -> None:
    """Nor changed, and a confirmation is not resumed beside another one or beside the study."""
    ann = service.studies()
    ended_study(service)
    first = confirm_jobs.submit(ann, "small", (), 3, 1.0).study
    before = service.store.require("small").spec
    for overrides in ((), ("budget.trials=99",)):
        with pytest.raises(ConflictError, match=f"'small' cannot continue while {first} is queued. Wait for its end"):
            ann.resume("small", overrides)
    assert (service.store.require("small").spec, ann.job("small").state) == (before, "stopped")
    ann.cancel(first)
    second = confirm_jobs.submit(ann, "small", (), 3, 1.0).study
    with pytest.raises(ConflictError, match=f"'{first}' cannot continue while {second} is queued"):
        ann.resume(first)
    ann.cancel(second)
    assert ann.resume("small", ("budget.trials=99",)).state == "queued"
    with pytest.raises(ConflictError, match=f"'{first}' cannot continue while small is queued"):
        ann.resume(first)


def test_a_resume_looks_for_confirmations_in_its_own_transaction(service, monkeypatch):
    ann = service.studies()
    ended_study(service)
    monkeypatch.setattr(JobQueue, "check_may_go_on", lambda *_: confirm_jobs.submit(ann, "small", (), 3, 1.0))
    with pytest.raises(ConflictError, match=r"while small:confirm-1 is queued\. Wait for its end"):
        ann.resume("small")


def test_a_job_that_confirms_needs_a_worker_on_which_its_study_fits(service: TestedService) -> None:
    ended_study(service, slots=None, space=WIDE, resources={"cpus_per_rank": 2})
    job = confirm_jobs.submit(service.studies(), "small", (), 3, 1.0)
    assert (job.least_slots, job.cpus_per_rank) == (2, 2)
