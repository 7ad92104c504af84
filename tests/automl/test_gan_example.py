"""The example of a GAN: it learns on one rank and on two, goes on with the same bits, and shows its own metric."""

import shutil
from dataclasses import replace

import pytest
import torch
import yaml

from tests.support.command_line import InProcess
from tests.support.function_trials import in_attempts, on
from tests.support.library_trials import spec_of
from tests.support.paths import EXAMPLES
from trainers.checkpoints.checkpoint import read_checkpoint

PARAMS = {"learning_rate": 0.002, "judge_ratio": 1.0, "matching": 1.0, "width": 64, "optimizer": "adamw"}


def gan_spec(folder, world_size=1, epochs=6):
    training = {"epochs": epochs, "reference_batch": 64}
    spec = spec_of("", world_size, params=PARAMS | {"batch_per_rank": 64 // world_size}, training=training)
    return replace(spec, task="gan:train", python_path=(str(EXAMPLES),), checkpoint_folder=str(folder), milestones=(2,))


def test_it_learns_alone_and_with_two_ranks_and_goes_on_with_the_same_bits(ranks, tmp_path):
    for world_size in (1, 2):
        distances = [one.metrics["distance"] for one in on(ranks, gan_spec(tmp_path, world_size))[0]["measurements"]]
        assert min(distances) < 0.6 * distances[0]
        assert min(distances) < 0.2
    whole = on(ranks, gan_spec(tmp_path / "whole", 2, epochs=2))[0]["measurements"]
    parts = [one["measurements"][0] for one in in_attempts(ranks, gan_spec(tmp_path / "parts", 2, epochs=2))]
    assert [one.metrics["distance"] for one in parts] == [one.metrics["distance"] for one in whole]
    kept = [read_checkpoint(one[-1].checkpoint)["function"] for one in (whole, parts)]
    assert sorted(kept[0]) == ["generator", "generator_steps", "judge", "judge_steps"]
    for network in ("generator", "judge"):
        for name, value in kept[0][network].items():
            assert torch.equal(value, kept[1][network][name]), name


@pytest.mark.medium
def test_a_training_shows_the_metrics_that_the_function_has_named(tmp_path, capsys, monkeypatch):
    for name in ("gan.py", "own_task.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():  # as under torchrun
        monkeypatch.setenv(name, value)
    given = [f"--param={name}={value}" for name, value in PARAMS.items()]
    code, out, err = InProcess(tmp_path, capsys, monkeypatch).run("train", "gan:train", "--epochs=1", *given)
    assert code == 0, err
    (result,) = [line for line in out.splitlines() if line.startswith("result ")]
    assert result.split()[1::2] == ["distance", "judge_loss", "generator_loss"]


def test_its_spec_is_one_and_the_example_is_short():
    from studies.spec.study_spec import parse_spec

    assert parse_spec(yaml.safe_load((EXAMPLES / "gan.yaml").read_text())).study == "gan"
    assert len((EXAMPLES / "gan.py").read_text().splitlines()) <= 60
