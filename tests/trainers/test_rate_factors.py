"""A task's multiples of the learning rate, by names of parameters, on any number of ranks and with any sharing out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer_pool import Blobs, Pool, spec_of, weights_of
from trainers.loop.trainer import Trainer
from trainers.model.optimizers import RATE_FACTOR
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group

ADAM = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}
COSINE = {"schedule": "cosine"}


class ByLayer(Blobs):
    """A tenth of the rate for the first layer."""

    def rate_factors(self, model: Any, params: Any) -> Mapping[str, float] | None:
        return {"0.weight": 0.1, "0.bias": 0.1}


class Slow(Blobs):
    """Half the rate for every parameter."""

    def rate_factors(self, model: Any, params: Any) -> Mapping[str, float] | None:
        return {name: 0.5 for name, _ in model.named_parameters()}


class Unchanged(Blobs):
    def rate_factors(self, model: Any, params: Any) -> Mapping[str, float] | None:
        return None


class Wrong(Blobs):
    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def rate_factors(self, model: Any, params: Any) -> Any:
        return self.found


def train(task: Blobs, spec: TrialSpec, until: int = 100, group: Group | None = None) -> tuple[dict[str, Any], Any]:
    trainer = Trainer(spec, task, group=group or Group())
    try:
        measured = list(trainer.advance(until, lambda: None))
        return weights_of(trainer), (measured, [dict(one) for one in trainer._state.optimizer.param_groups])
    finally:
        trainer.close()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_factors_are_learning_rates_through_the_schedule() -> None:
    slow, (measured, _) = train(Slow(), spec_of(params=ADAM, training=COSINE))
    plain, _ = train(Blobs(), spec_of(params=ADAM | {"learning_rate": 0.005}, training=COSINE))
    assert all(torch.allclose(value, plain[name], atol=1e-12) for name, value in slow.items())
    full, (fully_measured, _) = train(Blobs(), spec_of(params=ADAM, training=COSINE))
    assert not same(slow, full)
    assert measured[0].optimizer["learning_rate"] == fully_measured[0].optimizer["learning_rate"]
    _, (_, groups) = train(ByLayer(), spec_of(params=ADAM, training=COSINE), until=2)
    (high, low) = groups
    assert (high[RATE_FACTOR], low[RATE_FACTOR]) == (1.0, 0.1)
    assert low["lr"] == pytest.approx(high["lr"] / 10)
    assert low["weight_decay"] == high["weight_decay"] == 0.1
    assert 0 < high["lr"] < 0.01
    unchanged, (_, groups) = train(Unchanged(), spec_of(params=ADAM))
    plain, _ = train(Blobs(), spec_of(params=ADAM))
    assert same(unchanged, plain)
    assert [RATE_FACTOR in one for one in groups] == [False]


def _resumed(group: Group, spec: TrialSpec) -> list[dict[str, Any]]:
    whole, (measured, _) = train(ByLayer(), spec, group=group)
    return [whole, train(ByLayer(), replace(spec, resume_from=measured[0].checkpoint), group=group)[0]]


@pytest.mark.parametrize(("shard", "optimizer"), [("none", "adamw"), ("optimizer", "sgd"), ("full", "adamw")])
def test_two_ranks_train_as_one_does_and_go_on(ranks: Pool, tmp_path: Path, shard: str, optimizer: str) -> None:
    params = ADAM | {"optimizer": optimizer}
    one, _ = train(ByLayer(), spec_of(params=params, training=COSINE))
    spec = spec_of(
        2, params=params, training=COSINE | {"shard": shard}, milestones=(1,), checkpoint_folder=str(tmp_path)
    )
    for answer in ranks.run(2, _resumed, spec):
        assert not isinstance(answer, Exception), answer
        whole, resumed = answer
        assert all(torch.allclose(value, whole[name], atol=1e-10) for name, value in one.items())
        assert same(whole, resumed)


def test_a_state_that_ranks_shared_out_is_one_of_one_rank(ranks: Pool, tmp_path: Path) -> None:
    one, _ = train(ByLayer(), spec_of(params=ADAM))
    spec = spec_of(2, params=ADAM, training={"shard": "optimizer"}, milestones=(1,), checkpoint_folder=str(tmp_path))
    (answer, *_) = ranks.run(2, _checkpoint, spec)
    alone = replace(spec_of(params=ADAM), resume_from=answer)
    resumed, _ = train(ByLayer(), alone)
    assert all(torch.allclose(value, resumed[name], atol=1e-10) for name, value in one.items())


def _checkpoint(group: Group, spec: TrialSpec) -> str:
    _, (measured, _) = train(ByLayer(), spec, group=group)
    return str(measured[0].checkpoint)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([0.1], r"Wrong\.rate_factors: found a list, allowed: a mapping of names of parameters, or None"),
        ({"2.wieght": 0.1}, r"Wrong\.rate_factors: found '2\.wieght', allowed: names of the model's parameters"),
        ({"0.weight": -1}, r"Wrong\.rate_factors: found -1 for '0\.weight', allowed: a number above 0"),
        ({"0.weight": True}, r"Wrong\.rate_factors: found True for '0\.weight', allowed: a number above 0"),
    ],
)
def test_what_is_no_factor_is_refused(found: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        train(Wrong(found), spec_of())
