"""What a trial gets for parameters that it asks for as it runs, on one rank and on several."""

from dataclasses import replace
from typing import Any

import pytest

from automl.adapters.optuna_objective import as_training_function
from search_spaces.parameters import Int
from search_spaces.suggestions import Asked, choice_domain, drawn, float_domain, int_domain
from tests.support import optuna_objectives as objectives
from tests.support.function_trials import Granted
from trainers.contract.training_function import TrainingFunction
from trainers.functions.function_trainer import FunctionTrainer
from trainers.functions.trial import Asking
from trainers.protocol import TaskError, TrialSpec
from trainers.ranks.process_group import Group

SPEC = TrialSpec(study="s", trial=4, task="x:y", params={}, training={"epochs": 4}, seed=7, proposed={})
RANGE = int_domain(1, 100)


def test_what_is_proposed_is_taken_where_it_lies_in_the_range() -> None:
    asking = Asking(replace(SPEC, proposed={"a": Asked(30, RANGE), "b": Asked(30, RANGE)}))
    told: dict[str, Asked] = {}
    asking.tell = told.__setitem__
    narrow = int_domain(1, 20)
    assert asking.value("a", RANGE) == 30
    assert asking.value("b", narrow) == drawn(narrow, seed=7, trial=4, name="b"), "the range has changed"
    assert asking.value("c", RANGE) == drawn(RANGE, seed=7, trial=4, name="c"), "nobody knew of it"
    assert told == {"a": Asked(30, RANGE), "b": Asked(told["b"].value, narrow), "c": Asked(told["c"].value, RANGE)}
    again = Asking(replace(SPEC, attempt=2, proposed=told))
    assert [again.value(*one) for one in (("c", RANGE), ("b", narrow), ("a", RANGE))] == [
        told[name].value for name in "cba"
    ]
    assert again.digest() == asking.digest() != Asking(SPEC).digest()


@pytest.mark.parametrize(
    ("name", "domain", "words"),
    [
        (
            "a",
            int_domain(1, 100, log=True),
            r"^a: found a whole number from 1 to 100 \(log\), but an earlier trial had a",
        ),
        ("a", choice_domain(["x"]), "^a: found one of 'x', but an earlier trial had a whole number from 1 to 100"),
        (
            "b",
            int_domain(50, 60),
            "^b: an earlier call with a whole number from 1 to 1, gave 1, but this call has a whole number",
        ),
        ("b", float_domain(0.0, 1.0), "^b: an earlier call .* gave 1, but this call has a number from 0.0 to 1.0"),
        (
            "world_size",
            RANGE,
            r"^world_size: the number of ranks must be known before .* numbers .*, or set space=\{'world_size': ...\}",
        ),
        ("", RANGE, "^name: found '', allowed: a text that is not empty"),
    ],
)
def test_calls_that_do_not_go_together_are_refused_in_a_line(name: str, domain: Any, words: str) -> None:
    asking = Asking(replace(SPEC, proposed={"a": Asked(30, RANGE)}))
    asking.value("b", Int(1, 10, step=9))
    with pytest.raises(TaskError, match=words.replace("1 to 1,", "1 to 10 in steps of 9")) as refused:
        asking.value(name, domain)
    assert "\n" not in str(refused.value)


class Hearing(Granted):
    """Also hears what a trial asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, Any] = {}

    def asked(self, name: str, asked: Asked) -> None:
        self.heard[name] = asked.value


def run(group: Group, spec: TrialSpec, name: str) -> Any:
    function = TrainingFunction(function=as_training_function(getattr(objectives, name), ["error"], 4))
    trainer, course = FunctionTrainer(spec, function, group=group), Hearing()
    try:
        trainer.run(course)
    except TaskError as error:
        return str(error)
    finally:
        trainer.close()
    return course.heard


def test_an_objective_runs_with_what_it_asks_for() -> None:
    spec = replace(SPEC, params={"layers": 2, "rate": 0.1, "kind": "adam"})
    heard = run(Group(), spec, "objective")
    assert set(heard) == {"units_0", "units_1", "beta"}
    assert run(Group(), spec, "objective") == heard
    assert run(Group(), replace(spec, trial=5), "objective") != heard
    assert set(run(Group(), replace(spec, params={**spec.params, "kind": "sgd"}), "objective")) == {
        "units_0",
        "units_1",
    }


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("without_bounds", "trial.suggest_float: rate.low: found nan, allowed: a finite number"),
        ("without_any_choice", "trial.suggest_categorical: kind.choices: found [], allowed: at least one value"),
        ("twice_with_other_ranges", "trial.suggest_int: width: an earlier call with a whole number from"),
        ("asks_for_ranks", "trial.suggest_int: world_size: the number of ranks must be known before"),
    ],
)
def test_bad_calls_fail_the_trial_with_one_line(objective: str, words: str) -> None:
    refused = run(Group(), SPEC, objective)
    assert words in refused
    assert "\n" not in refused


def test_ranks_get_the_same_once_and_find_out_where_they_ask_for_different_things(ranks: Any) -> None:
    first, second = ranks.run(2, run, replace(SPEC, world_size=2), "with_a_loop")
    assert set(first) == {"units_0", "units_1"}
    assert second == {}, "told once"
    refused = ranks.run(2, run, replace(SPEC, world_size=2), "by_rank")
    words = "rank 1 requested other parameters than rank 0 by the end of epoch 1; make the same calls"
    assert [words in one for one in refused] == [True, True]
