"""Combinations of the trainer's options, each of which must train the same in a used process as in a new one."""

from typing import Any

from tests.support.trainer_pool import BLOBS
from tests.support.trial_rows import SPOILER, spec_with
from trainers.protocol import TrialSpec

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


def combined(name: str, number: int, **more: Any) -> TrialSpec:
    """A trial of this number with one of the combinations; `more` goes to `spec_with`."""
    training, own = COMBINATIONS[name]
    return spec_with(number, training, task=BLOBS, **own, **more)


def others() -> list[TrialSpec]:
    """Ten trials, among them two that spoil what they can."""
    trials = [combined(name, 100 + number) for number, name in enumerate([*COMBINATIONS][:8])]
    spoilers = [spec_with(200 + number, {}, task=SPOILER) for number in range(2)]
    return [*trials[:4], spoilers[0], *trials[4:], spoilers[1]]
