"""A trial is the same in a process that has trained others as in a new one: its weights bit for bit, and its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer_pool import BLOBS
from tests.support.trial_rows import SPOILER, spec_with, train_row

ADAMW = {"optimizer": "adamw", "weight_decay": 0.1}
COMPILABLE = {"kind": "compilable norms"}
COMBINATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "zero1, accumulation, average": ({"shard": "optimizer", "accumulate": 2, "ema": 0.9}, ADAMW),
    "full, checkpointing, bf16": ({"shard": "full", "activation_checkpointing": True, "precision": "bf16"}, {}),
    "checkpointing, clipping": ({"activation_checkpointing": True, "clip_norm": 0.1}, ADAMW),
    "plain": ({}, {}),
    "one rank, bf16": ({"precision": "bf16"}, {"world_size": 1}),
    "one rank, accumulation, average": ({"accumulate": 3, "ema": 0.5}, {"world_size": 1}),
    "zero1, bf16": ({"shard": "optimizer", "precision": "bf16"}, {}),
    "full": ({"shard": "full"}, ADAMW),
    "full, accumulation, average": ({"shard": "full", "accumulate": 2, "ema": 0.9}, {}),
    "powersgd": ({"compress": "powersgd", "label_smoothing": 0.1}, {}),
    "compiled": ({"compile": True}, COMPILABLE),
    "compiled, checkpointing": ({"compile": True, "activation_checkpointing": True}, COMPILABLE | ADAMW),
}
"""Options of the trainer, and other arguments of `spec_with`."""

MOST_BYTES = 64 * 2**20
"""Most that the peaks of equal trials may differ by: libraries keep some 35 MiB that they make at first use, the
compiler 20 MiB more. Ten models of 7 MB with gradients and moments would be 280 MB. Thirty more trials added nothing
(307, 339, 332, 334, 334 MiB).
"""


def others() -> list[Any]:
    """Ten trials, among them two that spoil what they can."""
    chosen = [*COMBINATIONS.values()][:8]
    trials = [spec_with(100 + number, training, task=BLOBS, **more) for number, (training, more) in enumerate(chosen)]
    spoilers = [spec_with(200 + number, {}, task=SPOILER) for number in range(2)]
    return [*trials[:4], spoilers[0], *trials[4:], spoilers[1]]


@pytest.mark.parametrize(
    ("names", "before"),
    [
        pytest.param([*COMBINATIONS][:1], slice(2, 5), id="one"),
        pytest.param([*COMBINATIONS][:10], slice(10), id="ten", marks=pytest.mark.slow),
        pytest.param([*COMBINATIONS][10:], slice(10), id="compiled", marks=pytest.mark.slow),
    ],
)
@pytest.mark.xdist_group("ranks")
def test_a_trial_is_the_same_in_a_new_process_as_after_others(tmp_path: Path, names: list[str], before: slice) -> None:
    specs = [
        spec_with(number, COMBINATIONS[name][0], folder=str(tmp_path), task=BLOBS, **COMBINATIONS[name][1])
        for number, name in enumerate(names)
    ]
    used = train_row([*others()[before], *specs])
    fresh = [train_row([spec])[0] for spec in specs]
    for name, (weights, peak), (those, their_peak) in zip(names, used, fresh, strict=True):
        differing = [key for key in those if weights[key] != those[key]]
        assert not differing, f"{name}: {differing}"
        assert abs(peak - their_peak) < MOST_BYTES, f"{name}: {peak / 2**20:.1f} and {their_peak / 2**20:.1f} MiB"
