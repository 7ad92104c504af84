"""A task's own optimizer, schedule and multiples of the rate: they are followed, kept, or refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer_pool import Blobs, Pool, spec_of, weights_of
from trainers.loop.trainer import Trainer
from trainers.model.learning_rate import planned_learning_rate
from trainers.model.optimizers import OPTIMIZERS, RATE_FACTOR, build_optimizer
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group
from trainers.trainer_options import TRAINER_PARAMETERS
from trainers.trial_settings import settings_of

ADAM = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}
COSINE = {"schedule": "cosine"}


class Same(Blobs):
    """What the trainer does by itself, as an optimizer of the task's own."""

    def optimizer(self, model: Any, learning_rate: float, params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, fused=True)


class ByLayer(Blobs):
    """A tenth of the rate for the first layer, RMSprop, and a rate that falls in a straight line."""

    def optimizer(self, model: Any, learning_rate: float, params: Any) -> torch.optim.Optimizer:
        first, *rest = [list(layer.parameters()) for layer in model if list(layer.parameters())]
        groups = [{"params": first, "lr": learning_rate / 10}, {"params": [one for each in rest for one in each]}]
        return torch.optim.RMSprop(groups, lr=learning_rate)

    def schedule(self, step: float, steps: float, params: Any) -> float:
        return 1 - step / steps


class Frozen(Blobs):
    """The layers with these numbers do not learn."""

    def __init__(self, *frozen: int) -> None:
        super().__init__()
        self.frozen = frozen

    def optimizer(self, model: Any, learning_rate: float, params: Any) -> torch.optim.Optimizer:
        layers = [layer for layer in model if list(layer.parameters())]
        rates = [0.0 if number in self.frozen else learning_rate / 2 for number in range(len(layers))]
        groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(layers, rates, strict=True)]
        return torch.optim.SGD(groups)


class Wrong(Blobs):
    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def optimizer(self, model: Any, learning_rate: float, params: Any) -> Any:
        return self.made

    def schedule(self, step: float, steps: float, params: Any) -> Any:
        return -1.0 if step else 1.0


def train(task: Blobs, spec: TrialSpec, until: int = 100, group: Group | None = None) -> tuple[dict[str, Any], Any]:
    trainer = Trainer(spec, task, group=group or Group())
    try:
        measured = list(trainer.advance(until, lambda: None))
        return weights_of(trainer), (measured, [dict(one) for one in trainer._state.optimizer.param_groups])
    finally:
        trainer.close()


def test_an_optimizer_of_the_task_trains_the_same_weights_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    params = {"momentum": 0.9}
    ours, _ = train(Blobs(), spec_of(params=params))
    own, _ = train(Same(), spec_of(params=params))
    assert all(torch.equal(value, own[name]) for name, value in ours.items())
    spec = spec_of(milestones=(1,), checkpoint_folder=str(tmp_path))
    whole, (measured, _) = train(ByLayer(), spec)
    resumed, _ = train(ByLayer(), replace(spec, resume_from=measured[0].checkpoint))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_groups_keep_the_ratio_of_their_rates_and_the_schedule_is_the_tasks() -> None:
    _, (_, (low, high)) = train(ByLayer(), spec_of(), until=2)
    assert (low[RATE_FACTOR], high[RATE_FACTOR]) == (pytest.approx(0.1), pytest.approx(1.0))
    assert low["lr"] == pytest.approx(high["lr"] / 10)
    steps = 4 * 3
    assert high["lr"] == pytest.approx(0.1 * (1 - (4 * 2 - 1) / steps))


@pytest.mark.parametrize(("frozen", "rate"), [((0,), 0.1), ((1,), 0.1), ((0, 1), 0.0)])
def test_a_group_may_have_the_rate_0_and_stays_as_it_was(frozen: tuple[int, ...], rate: float) -> None:
    """As the layers of a backbone that is frozen, the first group in most scripts."""
    spec = spec_of(training={"warmup_epochs": 0, "schedule": "constant"})
    _, (measured, groups) = train(Frozen(*frozen), spec, until=2)
    assert [one.optimizer["learning_rate"] for one in measured] == [rate, rate]
    assert [one["lr"] for one in groups] == [0.0 if number in frozen else 0.05 for number in range(2)]


def _on_rank(group: Group, spec: TrialSpec) -> dict[str, Any]:
    return train(ByLayer(), spec, group=group)[0]


@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_ranks_train_as_one_does(ranks: Pool, shard: str) -> None:
    one = _on_rank(Group(), spec_of())
    for other in ranks.run(2, _on_rank, spec_of(2, training={"shard": shard})):
        assert not isinstance(other, Exception), other
        assert all(torch.allclose(value, other[name], atol=1e-10) for name, value in one.items())


@pytest.mark.parametrize(
    ("made", "training", "words"),
    [
        (None, {}, r"Wrong\.optimizer: found a NoneType, allowed: a torch\.optim\.Optimizer"),
        (torch.optim.SGD([torch.zeros(1)], lr=1.0), {}, r"Wrong\.schedule: found -1\.0 at step 1 of 12, allowed: a"),
    ],
)
def test_what_is_no_optimizer_or_rate_is_refused(made: Any, training: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        train(Wrong(made), spec_of(training=training))


def _sharing(group: Group, spec: TrialSpec) -> Any:
    with pytest.raises(
        TaskError, match=r"Same\.optimizer: the state of an optimizer of your own .* Set shard to none or full"
    ):
        train(Same(), spec, group=group)


def test_its_state_is_not_shared_out_and_a_name_of_no_optimizer_is_refused(ranks: Pool) -> None:
    for one in ranks.run(2, _sharing, spec_of(2, training={"shard": "optimizer"})):
        assert one is None, one
    assert tuple(OPTIMIZERS) == TRAINER_PARAMETERS["optimizer"].choices
    settings = replace(settings_of(spec_of()), optimizer="lion", schedule="constant", warmup_epochs=0)
    with pytest.raises(TaskError, match=r"^optimizer: found 'lion', allowed: sgd, adam, adamw$"):
        build_optimizer([], settings, planned_learning_rate(settings, None, None), Group())


class FactorByLayer(Blobs):
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


class WrongFactors(Blobs):
    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def rate_factors(self, model: Any, params: Any) -> Any:
        return self.found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_factors_are_learning_rates_through_the_schedule() -> None:
    slow, (measured, _) = train(Slow(), spec_of(params=ADAM, training=COSINE))
    plain, _ = train(Blobs(), spec_of(params=ADAM | {"learning_rate": 0.005}, training=COSINE))
    assert all(torch.allclose(value, plain[name], atol=1e-12) for name, value in slow.items())
    full, (fully_measured, _) = train(Blobs(), spec_of(params=ADAM, training=COSINE))
    assert not same(slow, full)
    assert measured[0].optimizer["learning_rate"] == fully_measured[0].optimizer["learning_rate"]
    _, (_, groups) = train(FactorByLayer(), spec_of(params=ADAM, training=COSINE), until=2)
    (high, low) = groups
    assert (high[RATE_FACTOR], low[RATE_FACTOR]) == (1.0, 0.1)
    assert low["lr"] == pytest.approx(high["lr"] / 10)
    assert low["weight_decay"] == high["weight_decay"] == 0.1
    assert 0 < high["lr"] < 0.01
    unchanged, (_, groups) = train(Unchanged(), spec_of(params=ADAM))
    plain, _ = train(Blobs(), spec_of(params=ADAM))
    assert same(unchanged, plain)
    assert [RATE_FACTOR in one for one in groups] == [False]


def _resumed(group: Group, spec: TrialSpec) -> tuple[dict[str, Any], dict[str, Any], str]:
    whole, (measured, _) = train(FactorByLayer(), spec, group=group)
    path = str(measured[0].checkpoint)
    return whole, train(FactorByLayer(), replace(spec, resume_from=path), group=group)[0], path


@pytest.mark.parametrize(("shard", "optimizer"), [("none", "sgd"), ("optimizer", "adamw"), ("full", "adamw")])
def test_two_ranks_train_with_factors_as_one_does_and_go_on(ranks, tmp_path, shard, optimizer):
    params = ADAM | {"optimizer": optimizer}
    alone = spec_of(params=params, training=COSINE)
    one, _ = train(FactorByLayer(), alone)
    spec = spec_of(
        2, params=params, training=COSINE | {"shard": shard}, milestones=(1,), checkpoint_folder=str(tmp_path)
    )
    for answer in ranks.run(2, _resumed, spec):
        assert not isinstance(answer, Exception), answer
        whole, resumed, path = answer
        assert all(torch.allclose(value, whole[name], atol=1e-10) for name, value in one.items())
        assert same(whole, resumed)
    resumed, _ = train(FactorByLayer(), replace(alone, resume_from=path))
    assert all(torch.allclose(value, resumed[name], atol=1e-10) for name, value in one.items())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([0.1], r"WrongFactors\.rate_factors: found a list, allowed: a mapping of parameter names, or None"),
        ({"2.wieght": 0.1}, r"WrongFactors\.rate_factors: found '2\.wieght', allowed: names of the model's parameters"),
        ({"0.weight": -1}, r"WrongFactors\.rate_factors: found -1 for '0\.weight', allowed: a number above 0"),
        ({"0.weight": True}, r"WrongFactors\.rate_factors: found True for '0\.weight', allowed: a number above 0"),
    ],
)
def test_what_is_no_factor_is_refused(found: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        train(WrongFactors(found), spec_of())
