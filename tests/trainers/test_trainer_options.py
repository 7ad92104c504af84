"""A trainer option is declared once: its type, default and range agree, and spec and settings are read off it."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from studies.spec.sections import TrainingSpec
from tests.support.trainer_pool import spec_of
from trainers.trainer_options import TRAINER_PARAMETERS, TrainerOptions
from trainers.trial_settings import Settings, settings_of

TYPES = {"whole": int, "number": float}


@pytest.mark.parametrize("name", sorted(TRAINER_PARAMETERS))
def test_type_default_and_range_of_an_option_agree(name: str) -> None:
    parameter, annotation = TRAINER_PARAMETERS[name], get_type_hints(TrainerOptions)[name]
    assert parameter.problem(parameter.default) is None
    allowed = {one for part in (get_args(annotation) or (annotation,)) for one in (get_args(part) or (part,))}
    words = {type(None) if word is None else word for word in parameter.choices}
    if parameter.kind == "choice":
        types = {one if isinstance(one, type) else type(one) for one in allowed}
        assert types == {type(choice) for choice in parameter.choices}
    else:
        assert allowed == {TYPES[parameter.kind], *words}


def test_spec_settings_and_trials_without_options_have_the_one_declaration_and_its_defaults() -> None:
    keys = [name for name, parameter in TRAINER_PARAMETERS.items() if not parameter.only_in_space]
    assert list(TrainingSpec.model_fields) == ["epochs", *keys]
    assert {name: TrainingSpec.model_fields[name].default for name in keys} == {
        name: TRAINER_PARAMETERS[name].default for name in keys
    }
    assert {option.name for option in fields(Settings)} == {"epochs", *TRAINER_PARAMETERS}
    settings = settings_of(spec_of(params={"batch_per_rank": 64}, training={"reference_batch": 64}))
    defaults = TrainerOptions()
    assert {name: getattr(settings, name) for name in TRAINER_PARAMETERS} == {
        name: getattr(defaults, name) for name in TRAINER_PARAMETERS
    }


def test_checkpoints_are_written_in_the_background_on_a_gpu_whose_host_has_room() -> None:
    assert Settings().writes_in_background("cuda")
    assert not Settings(shard_offload=True).writes_in_background("cuda")
    assert not Settings().writes_in_background("cpu")
    assert Settings(checkpoint_async=True, shard_offload=True).writes_in_background("cpu")
    assert not Settings(checkpoint_async=False).writes_in_background("cuda")
