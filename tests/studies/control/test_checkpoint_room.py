"""`checkpoints.max_gib`: paused trials give up their checkpoints when all files together take more room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from studies.control.files.kept_files import CheckpointKeeper, Milestone
from studies.control.files.orphans import sizes_of
from studies.control.machine import trial_endings
from studies.control.machine.live_study import LiveStudy
from studies.control.machine.live_trials import Trial
from studies.control.machine.state import StudyMachine
from studies.gangs.pool_protocol import Event, Measured
from studies.gangs.simulated import SimulatedPool
from studies.money.budget import Limits
from studies.search.policy import Policy
from studies.search.pruners.mo_asha import MoAsha
from studies.storage.reading.reader import load_resume_state, mentioned_checkpoints
from tests.support.object_stores import BUCKET, FaultyStore
from tests.support.simulated_study import SimulatedStudy, checked
from trainers.checkpoints.checkpoint_stores import place_of
from trainers.checkpoints.locations import name_of

GIB = 2**30


class HeavyPool(SimulatedPool):
    """Every checkpoint that a gang reports takes a GiB."""

    def wait(self, seconds: float) -> list[Event]:
        return [
            replace(event, measurement=replace(event.measurement, checkpoint_bytes=GIB))
            if isinstance(event, Measured) and event.measurement.checkpoint
            else event
            for event in super().wait(seconds)
        ]


def largest_total(folder: Path, most_gib: float | None) -> tuple[SimulatedStudy, float]:
    """A study, and the most that its checkpoints took after any commit while a paused trial could free some, in GiB."""
    study = SimulatedStudy(folder, policy=Policy(pruner=MoAsha(variant="promotion")), slots=2, pool=HeavyPool)
    study.most_checkpoint_gib, largest = most_gib, 0.0

    def on_commit(machine: StudyMachine) -> None:
        nonlocal largest
        keeper = machine._live.keeper
        trials = [machine._live.registry.numbered(number) for number in machine._live.history.paused]
        if any(keeper.frees_bytes(one.id) for one in trials):  # else all that is left is needed
            largest = max(largest, keeper.total_bytes / GIB)
        assert keeper.total_bytes == GIB * len(keeper._reasons), "each file that is kept is weighed once"

    study.on_commit = on_commit
    study.run(Limits(trials=24))
    return study, largest


@pytest.mark.medium
def test_paused_trials_are_evicted_when_checkpoints_take_too_much_room_where_that_frees_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused trials wait at rungs, which are milestones: the files of leaders stay as models of the archive anyway."""
    freed: list[int] = []
    evict = trial_endings.evict

    def weighing(live: LiveStudy, trial: Trial, limit: str) -> None:
        before = live.keeper.total_bytes
        evict(live, trial, limit)
        freed.append(before - live.keeper.total_bytes)

    monkeypatch.setattr(trial_endings, "evict", weighing)
    _, unlimited = largest_total(tmp_path / "free", None)
    study, largest = largest_total(tmp_path / "bound", 4.0)
    assert largest <= 4.0 < unlimited
    assert set(freed) == {GIB}
    record = checked(study)
    reasons = {trial.reason for trial in record.started if "evicted" in trial.reason}
    assert reasons == {"evicted as the least valuable paused trial: checkpoints may take 4 GiB (checkpoints.max_gib)"}
    assert len(record.started) == 24
    assert any(trial.state == "complete" for trial in record.started), "leaders go on"


def test_a_file_is_weighed_once_and_as_long_as_somebody_needs_it() -> None:
    keeper = CheckpointKeeper()
    keeper.weigh("nobody's", GIB)
    assert keeper.total_bytes == 0
    keeper.offer(Milestone(trial_id=1, epoch=3, values=(0.5, 0.5), path="a"), to="archive")
    keeper.go_on_from(1, "a")
    keeper.weigh("a", 100)
    keeper.weigh("a", 120)  # the epoch was trained again
    assert keeper.total_bytes == 120
    keeper.offer(Milestone(trial_id=2, epoch=3, values=(0.4, 0.4), path=None), to="archive")
    assert keeper.total_bytes == 120, "its trial goes on from it"
    assert keeper.go_on_from(1, None).files == ("a",)
    assert keeper.total_bytes == 0


def test_a_resumed_study_weighs_what_was_kept(tmp_path: Path) -> None:
    study = SimulatedStudy(tmp_path, policy=Policy(pruner=MoAsha(variant="promotion")), slots=2, pool=HeavyPool)
    assert study.run_until_killed(Limits(trials=24), commits=60)
    state = load_resume_state(study.store, study.study_id, before_lease=-1)
    paths = mentioned_checkpoints(study.store, study.study_id)
    assert len(paths) > 3
    weighed = replace(state, checkpoint_bytes=dict.fromkeys(paths, GIB))
    machine = StudyMachine(
        study._setup(Limits(trials=24)), weighed, alive_since=0.0, pick=lambda free, _: free, worn=lambda _: ()
    )
    assert machine._live.keeper.total_bytes == GIB * len(paths)


def test_a_resumed_study_weighs_what_an_object_store_holds(object_store: FaultyStore, tmp_path: Path) -> None:
    local = tmp_path / "epoch-0001.attempt-1.pt"
    local.write_bytes(bytes(10))
    urls = [f"s3://{BUCKET}/s/trial-00000/epoch-{epoch:04d}.attempt-1.pt" for epoch in (1, 2, 3)]
    for size, url in enumerate(urls[:2], start=20):
        place = place_of(url)
        name = name_of(url).replace(".pt", ".rank-0-of-2.pt")
        part = place.write_part(url.replace(name_of(url), name), lambda file: file.write(bytes(5)))
        place.write(url, lambda file, size=size: file.write(bytes(size)), {name: part})
    object_store.faults.hidden = set(object_store.keys())
    assert sizes_of([str(local), *urls]) == {str(local): 10, urls[0]: 25, urls[1]: 26}
