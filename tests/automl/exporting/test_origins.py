"""Which models of confirmed seeds are kept, and which of them an ensemble is made of: as read from a store."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from automl.exporting.atomic_outputs import ExportError
from automl.exporting.origins import ensemble_origin, kept_ensemble, origin_of, seeds_named
from studies.records.records import StudyRecord
from studies.results.confirmations import confirmation_of
from studies.storage.reading.reader import load_study
from studies.storage.schema.engine import StoreError
from studies.storage.writing.changes import Confirmed
from tests.support.stored_study import StoredStudy
from trainers.protocol import TEST_PREFIX


class Confirming:
    """The trial 0 of a stored study, whose points are confirmed one after the other."""

    def __init__(self, folder: Path) -> None:
        self.study = StoredStudy(folder)
        self.study.trial(epochs=6, checkpoints=(2, 6))
        (self._trial,) = self.record.started
        self._now = 0.0

    @property
    def record(self) -> StudyRecord:
        return load_study(self.study.store, "small")

    def confirm(self, *seeds: int, epoch: int = 6, error: float = 0.1, keeps: bool = False) -> None:
        rows = []
        for seed in seeds:
            self._now += 1.0
            rows.append(Confirmed(
                trial_id=self._trial.id, seed=seed, epoch=epoch, epochs=epoch,
                metrics={"val_error": error, f"{TEST_PREFIX}val_error": error}, wall_seconds=1.0, cost_nano_usd=0,
                checkpoint=f"/nowhere/{seed}@{epoch}.pt" if keeps else None, at=self._now,
            ))  # fmt: skip
        self.study.store.commit(self.study.id, None, rows)

    def together(self, name: str = "ensemble:0") -> list[str | None]:
        """Files of the models that a name stands for."""
        named = seeds_named(self.record, name)
        assert named is not None
        return [one.checkpoint for one in named]


@pytest.fixture
def confirming(tmp_path: Path) -> Iterator[Confirming]:
    one = Confirming(tmp_path)
    yield one
    one.study.store.close()


def test_the_card_and_the_study_name_one_cost_of_a_model(confirming: Confirming) -> None:
    """It has the start of the trial, which no epoch pays."""
    source: Any = SimpleNamespace(content={"position": {"epoch": 2}})
    told = confirming.record.started[0].epochs[1].metrics["cost_usd"]
    assert origin_of(confirming.record, 0, source)["cost_usd"] == told > 0
    assert confirming.record.started[0].epochs[1].cost_nano_usd == 0


def test_a_model_that_was_kept_stays_kept_when_its_seed_is_confirmed_again(confirming: Confirming) -> None:
    confirming.confirm(7, 8, 9, error=0.1, keeps=True)
    confirming.confirm(7, 8, error=0.2)
    assert confirming.together() == [f"/nowhere/{seed}@6.pt" for seed in (7, 8, 9)]
    found = confirmation_of(confirming.record, 0)
    assert found["metrics"]["val_error"]["values"] == [0.2, 0.2, 0.1], "a seed is one sample, the latest"


def test_one_seed_of_a_later_epoch_hides_no_ensemble(confirming: Confirming) -> None:
    confirming.confirm(7, 8, epoch=2, keeps=True)
    confirming.confirm(7, epoch=6, keeps=True)
    confirming.confirm(9, epoch=2, error=0.4)
    assert confirming.together() == confirming.together("ensemble") == ["/nowhere/7@2.pt", "/nowhere/8@2.pt"]
    with pytest.raises(
        StoreError, match=r"'ensemble:0@6' needs saved models of at least two seeds, but has none\. Name one of"
    ):
        confirming.together("ensemble:0@6")
    confirming.confirm(8, epoch=6, keeps=True)
    assert confirming.together() == ["/nowhere/7@6.pt", "/nowhere/8@6.pt"]
    assert confirming.together("ensemble:0@2") == ["/nowhere/7@2.pt", "/nowhere/8@2.pt"]
    record = confirming.record
    assert [run.epoch for run in kept_ensemble(record, "0@2", "package")] == [2, 2]
    confirmed = ensemble_origin(record, kept_ensemble(record, "0@2", "package"))["confirmed"]
    assert confirmed["metrics"]["val_error"]["values"] == [0.1, 0.1], "the seed without a model is not in it"
    with pytest.raises(ExportError, match=r"trial 0 .* after epoch 4\. Train them with `automl confirm small 0@4"):
        kept_ensemble(record, "0@4", "package")
