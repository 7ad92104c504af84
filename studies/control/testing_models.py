"""Measures the recommended model and the baselines on the test part when a study ends, in its open pool.

The recommended model's predictions are also described, even without a test part (`trainers.loop.epoch_metrics`). The
store gets `Confirmed` rows of 0 epochs and charges of kind `test`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import last_line
from studies.control.machine.confirmation import ConfirmingMachine, SpentError, train_again
from studies.control.machine.study_setup import StudySetup
from studies.gangs.pool_protocol import GangPool, SlotsLost, SlotsReady
from studies.records.records import StudyRecord
from studies.results.baselines import baselines
from studies.results.recommendation import recommended
from studies.storage.leases.dead_pools import note_overshoot
from studies.storage.leases.lease import Lease
from studies.storage.study_store import Store
from studies.storage.writing.retrying import retry
from trainers.protocol import TEST_PREFIX, TrialSpec

log = logging.getLogger(__name__)


def _models_to_test(record: StudyRecord, recommended_point: tuple[int, int]) -> Mapping[tuple[int, int], str]:
    """Return the checkpoints to measure, by trial and epoch: the recommended model and baselines."""
    known = [(one.trial, one.epoch) for one in baselines(record) if one.trial is not None and one.epoch is not None]
    if not _has_test_part(record, recommended_point[0]):
        known = []
    done = {(one.trial, one.epoch) for one in record.tests}
    models = {}
    for trial, epoch in (recommended_point, *known):
        saved = record.started[trial].epochs[epoch - 1]
        is_tested = (trial, epoch) in done or any(name.startswith(TEST_PREFIX) for name in saved.metrics)
        if saved.checkpoint is not None and not is_tested:
            models[trial, epoch] = saved.checkpoint
    return models


def _has_test_part(record: StudyRecord, trial: int) -> bool:
    return any(one.facts.get("has_test_part") for one in record.started[trial].attempts)


def test_specs(setup: StudySetup, record: StudyRecord, explain_seconds: float) -> list[TrialSpec]:
    """Return a trial for each test, which measures a saved model without training."""
    taken = recommended(record)
    if taken is None or record.not_trained_here:
        return []
    point = (taken.point.trial, taken.point.epoch)
    return [
        replace(
            setup.trial_spec(number, trial.declared_params, trial.world_size),
            resume_from=checkpoint,
            test_at=(epoch,),
            explain_seconds=explain_seconds if (number, epoch) == point else 0.0,
        )
        for (number, epoch), checkpoint in _models_to_test(record, point).items()
        for trial in (record.started[number],)
    ]


def test_models(
    setup: StudySetup,
    record: StudyRecord,
    specs: Sequence[TrialSpec],
    *,
    pool: GangPool,
    store: Store,
    lease: Lease,
    warm: tuple[int, ...],
    most_seconds: float,
) -> None:
    """Measure models on the free slots `warm` of an open pool, for at most `most_seconds`. Logs failures."""
    for event in pool.wait(0.0):  # drop events of the study's gangs
        if isinstance(event, SlotsReady | SlotsLost):
            pool.post(event)
    ids = {number: record.started[number].id for number in {one.trial for one in specs}}
    undone = "not scored on the test part" if _has_test_part(record, specs[0].trial) else "not described in the report"
    try:
        machine = ConfirmingMachine(setup, specs, ids, pool=pool, most_seconds=most_seconds, kind="test")
        done = train_again(machine, pool, store, study_id=record.id, lease_token=lease.token, warm=warm)
    except SpentError:
        more = record.resume_with_more
        log.warning(
            "the recommended model is %s: the budget was used up. To search on and do it then: %s", undone, more
        )
        return
    except (RunError, UserError) as error:
        log.warning("the recommended model is %s: %s", undone, error)
        return
    finally:
        retry(lambda: note_overshoot(store, lease))
    for one in done:
        if one.failure:
            name = f"{one.spec.trial}@{one.spec.test_at[0]}"
            log.warning("%s was not measured on the test part: %s", name, last_line(one.failure))
