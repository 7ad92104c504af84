"""A guess at the pattern of a program's output, for the error of a command that reported nothing."""

import re

import pytest

from trainers.commands.epoch_book import likely_pattern


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        (["step 100: train loss 0.9, val loss 0.5", "done"], {"step": "100", "train_loss": "0.9", "val_loss": "0.5"}),
        (["Epoch 3/10 - loss: 0.31 - val_acc: 9e-1"], {"epoch": "3", "loss": "0.31", "val_acc": "9e-1"}),
        (["epoch=3 val_loss=0.12 lr=1e-3"], {"epoch": "3", "val_loss": "0.12", "lr": "1e-3"}),
        (["| end of epoch   1 | time: 14.2s | valid loss  6.11 |"], {"epoch": "1", "valid_loss": "6.11"}),
        (["Train Epoch: 2 [1200/60000 (2%)]\tLoss: 0.31", "Saved 1"], {"epoch": "2", "loss": "0.31"}),
        (["Test set: Average loss: 0.0513, Accuracy: 98/100"], {"average_loss": "0.0513", "accuracy": "98"}),
        (["Average loss: 0.7", "Epoch 1", "Epoch 2: loss 0.5"], {"epoch": "2", "loss": "0.5"}),
        (["Acc@1 75.2 (best)"], {"acc_1": "75.2"}),
        (["Epoch 1: loss 0.5", "Test R²: 0.93"], {"epoch": "1", "loss": "0.5"}),
        (["Validation Dice score: 0.31", "Checkpoint 3 saved!"], {"dice_score": "0.31"}),
        (["Epoch 1: loss 0.5", "a" * 60_000], {"epoch": "1", "loss": "0.5"}),
    ],
)
def test_a_line_with_metrics_gives_its_pattern(lines: list[str], read: dict[str, str]) -> None:
    pattern = likely_pattern(lines)
    assert pattern is not None
    matches = [found.groupdict() for line in lines if (found := re.search(pattern, line))]
    assert read in matches


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["done"],
        ["epoch 3"],
        ["[10, 2000] 1.2"],
        ["v1.2.3 loaded"],
        ["main.py: 12 will create 8 workers, the system has 2"],
        ["Checkpoint 3 saved!"],
        ["accelerator: 1, power 250"],
    ],
)
def test_a_program_without_metrics_gets_no_guess(lines: list[str]) -> None:
    assert likely_pattern(lines) is None
