"""The one training that all contestants run, read from turnaround.yaml, and the form in which they hand in times."""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.results.extrapolation import milestones
from studies.spec.study_spec import StudySpec, load_spec
from trainers.protocol import TrialSpec

BENCHMARKS = Path(__file__).resolve().parent.parent
SPEC_FILE = BENCHMARKS / "turnaround.yaml"
WORLD_SIZE = 2


def study_spec() -> StudySpec:
    """Return the study as ours runs it."""
    return load_spec(SPEC_FILE)


def trial_spec(number: int, checkpoint_folder: Path | None) -> TrialSpec:
    """Return trial `number` as the study would dispatch it; without a folder it writes nothing."""
    spec = study_spec()
    epochs, grace = spec.training.epochs, spec.search.pruner.options["grace"]
    folder = None if checkpoint_folder is None else str(checkpoint_folder / str(number))
    return TrialSpec(
        study=spec.study,
        trial=number,
        task=spec.task,
        params=fixed_params(spec),
        training=spec.training.model_dump(),
        world_size=WORLD_SIZE,
        seed=number,
        device="cpu",
        cpus_per_rank=spec.resources.cpus_per_rank,
        milestones=milestones(epochs, grace, (grace,)),
        checkpoint_folder=folder,
        python_path=(str(BENCHMARKS),),
    )


def fixed_params(spec: StudySpec) -> dict[str, Any]:
    """Return the parameters: the only choice of each, and the low end of the one that varies."""
    assert spec.space is not None
    return spec.space.walk(lambda _name, p: p.choices[0] if hasattr(p, "choices") else p.low)


@dataclass(kw_only=True)
class Times:
    """What a contestant hands in.

    Attributes:
        seconds: One value per trial that counts.
        more: Whatever else is worth saying.
    """

    seconds: list[float]
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a contestant is told.

    Attributes:
        trials: Number of trials that count; warm-up comes on top.
        folder: Folder for all of its files; removed afterwards.
        started_at: When its process was started, seconds since 1970.
    """

    trials: int
    folder: Path
    started_at: float


def read_order() -> Order:
    """Return the order from this process's arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--started-at", type=float, required=True)
    given = parser.parse_args()
    return Order(trials=given.trials, folder=given.folder, started_at=given.started_at)


def hand_in(order: Order, times: Times) -> None:
    """Write the times where `turnaround.py` looks for them."""
    (order.folder / "times.json").write_text(json.dumps({"seconds": times.seconds, "more": times.more}))


def gaps(moments: list[float]) -> list[float]:
    """Return the time from each moment to the next."""
    return [later - earlier for earlier, later in itertools.pairwise(moments)]
