"""Trains leaders again and measures models when a study ends, in its open pool.

With `search.seeds`, leaders are trained again with fresh seeds, and the mean of their values decides. Then the
recommended model and the baselines are measured on the test part. The recommended model's predictions are also
described, even without a test part (`trainers.loop.epoch_metrics`). The store gets `Confirmed`
rows, for measurements with 0 epochs and charges of kind `test`.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from search_spaces.messages import RunError, UserError
from search_spaces.untrusted_text import last_line
from studies.control.machine.budget_account import LEADERS
from studies.control.machine.confirmation import ConfirmingMachine, Retrained, SpentError, fresh_training, train_again
from studies.control.machine.study_setup import StudySetup
from studies.gangs.pool_protocol import GangPool, SlotsLost, SlotsReady
from studies.records.records import ChargeKind, StudyRecord
from studies.results.baselines import baselines
from studies.results.recommendation import ranked_points, recommended, takeable
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
    setup: StudySetup, record: StudyRecord, specs: Sequence[TrialSpec], *, most_nano_usd: int | None, **place: Any
) -> None:
    """Measure models for at most `most_nano_usd`; `place` as in `_trained`. Logs failures."""
    undone = "not scored on the test part" if _has_test_part(record, specs[0].trial) else "not described in the report"
    try:
        done = _trained(setup, record, specs, kind="test", most_nano_usd=most_nano_usd, **place)
    except SpentError:
        more = record.resume_with_more
        log.warning(
            "the recommended model is %s: the budget was used up. To search on and do it then: %s", undone, more
        )
        return
    except (RunError, UserError) as error:
        log.warning("the recommended model is %s: %s", undone, error)
        return
    for one in done:
        if one.failure:
            name = f"{one.spec.trial}@{one.spec.test_at[0]}"
            log.warning("%s was not measured on the test part: %s", name, last_line(one.failure))


def leaders(record: StudyRecord) -> list[tuple[int, int]]:
    """Return trials and epochs of the recommended model and of the best other models, one for each trial."""
    taken = recommended(record)
    if taken is None:
        return []
    epochs: dict[int, int] = {}
    for point in (taken.point, *ranked_points(record, takeable(record))):
        epochs.setdefault(point.trial, point.epoch)
    return list(epochs.items())[:LEADERS]


def repetitions(setup: StudySetup, record: StudyRecord) -> list[TrialSpec]:
    """Return the leaders' trainings with fresh seeds that are not done; each leader's first one comes first."""
    done = {(one.trial, one.seed, one.epoch) for one in record.confirmations}
    wanted = [
        fresh_training(setup, record.started[trial], (epoch,), n)
        for n in range(setup.leader_seeds)
        for trial, epoch in leaders(record)
    ]
    return [one for one in wanted if (one.trial, one.seed, *one.test_at) not in done]


def repeat_leaders(setup: StudySetup, record: StudyRecord, *, most_seconds: float, **place: Any) -> bool:
    """Train leaders again for at most `most_seconds`, and return whether all of them ended; `place` as in `_trained`.

    Returns False if there is nothing to train. Logs failures.
    """
    specs = repetitions(setup, record)
    try:
        return bool(specs and _trained(setup, record, specs, kind="confirm", most_seconds=most_seconds, **place))
    except SpentError as error:
        log.info("training leaders again: %s", error)
    except (RunError, UserError) as error:
        log.warning("not all leaders were trained again: %s", error)
    return False


def _trained(
    setup: StudySetup,
    record: StudyRecord,
    specs: Sequence[TrialSpec],
    *,
    kind: ChargeKind,
    pool: GangPool,
    store: Store,
    lease: Lease,
    warm: tuple[int, ...],
    most_nano_usd: int | None = None,
    most_seconds: float = math.inf,
) -> list[Retrained]:
    """Run trainings on the free slots `warm` of an open pool. Raises the errors of `train_again`."""
    for event in pool.wait(0.0):  # drop events of the study's gangs
        if isinstance(event, SlotsReady | SlotsLost):
            pool.post(event)
    ids = {number: record.started[number].id for number in {one.trial for one in specs}}
    try:
        machine = ConfirmingMachine(
            setup, specs, ids, pool=pool, most_nano_usd=most_nano_usd, most_seconds=most_seconds, kind=kind
        )
        return train_again(machine, pool, store, study_id=record.id, lease_token=lease.token, warm=warm)
    finally:
        retry(lambda: note_overshoot(store, lease))
