"""Synthetic studies: records as a store would give them, with a ledger that adds up."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from studies.records.records import (
    AttemptRecord,
    BudgetLine,
    ChargeRecord,
    DecisionRecord,
    EpochRecord,
    Objective,
    StudyRecord,
    TrialRecord,
    TrialState,
)
from studies.results.extrapolation import milestones

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
PRICE = 2.0
ERROR = Objective(metric="val_error")
COST = Objective(metric="cost_usd")
TWO = (ERROR, COST)
SPACE: dict[str, dict[str, object]] = {
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "batch_per_rank": {"type": "int", "low": 16, "high": 256, "log": True},
    "world_size": {"type": "categorical", "choices": [1, 2]},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    "width": {"type": "int", "low": 16, "high": 512, "log": True},
}


def nano(slots: int, seconds: float) -> int:
    """The charge of so many slots for so long, in nano-dollars."""
    return round(slots * PRICE * seconds / 3600 * 1e9)


@dataclass
class Ledger:
    """Charges in the order of a clock that only goes on."""

    now: datetime = START
    charges: list[ChargeRecord] = field(default_factory=list)

    def charge(self, kind: str, trial: int | None, slots: int, seconds: float) -> int:
        """Append a charge and return its nano-dollars."""
        self.now += timedelta(seconds=seconds)
        cost = nano(slots, seconds)
        record = ChargeRecord(
            kind=kind,  # type: ignore[arg-type]
            trial=trial,
            attempt=None if trial is None else 1,
            slots=slots,
            seconds=seconds,
            usd_per_slot_hour=PRICE,
            cost_nano_usd=cost,
            charged_at=self.now,
            slot_numbers=tuple(range(slots)),
        )
        self.charges.append(record)
        return cost


def sample(rng: random.Random) -> dict[str, object]:
    """Parameters of `SPACE`."""
    params: dict[str, object] = {
        "learning_rate": 10 ** rng.uniform(-4, 0), "batch_per_rank": int(2 ** rng.uniform(4, 8)),
        "world_size": rng.choice([1, 2]), "optimizer": rng.choice(["sgd", "adamw"]),
        "width": int(2 ** rng.uniform(4, 9)),
    }  # fmt: skip
    if params["optimizer"] == "sgd":
        params["momentum"] = rng.uniform(0, 0.99)
    return params


def measured(params: Mapping[str, object], epoch: int, noise: float) -> dict[str, float]:
    """A learning curve whose bottom depends on the learning rate and the width."""
    rate, width = math.log10(float(params["learning_rate"])), math.log2(int(params["width"]))  # type: ignore[arg-type]
    bottom = 0.015 + 0.05 * (rate + 1.8) ** 2 + 0.012 * (9 - width)
    error = bottom + 0.7 * epoch ** -(0.6 + 0.1 * width / 9) * math.exp(noise)
    accuracy = 1 - error
    parameters = 64.0 * width**2 * 100
    return {"val_error": error, "val_accuracy": accuracy, "model_parameters": parameters, "latency_ms": 0.1 * width}


def build_trial(
    number: int,
    params: Mapping[str, object],
    ledger: Ledger,
    *,
    depth: int,
    state: TrialState,
    epochs: int = 20,
    rng: random.Random,
    measure: Callable[[Mapping[str, object], int, float], dict[str, float]] = measured,
    **overrides: object,
) -> TrialRecord:
    """A trial that trained `depth` epochs and came to `state`."""
    world = int(params.get("world_size", 1))  # type: ignore[call-overload]
    began = ledger.now
    paid, wall, rows = ledger.charge("start", number, world, rng.uniform(1, 3)), 0.0, []
    seconds = rng.uniform(4, 8) / world
    for epoch in range(1, depth + 1):
        cost = ledger.charge("train", number, world, seconds)
        paid, wall = paid + cost, wall + seconds
        metrics = measure(params, epoch, rng.gauss(0, 0.08))
        is_milestone = epoch in milestones(epochs)
        rows.append(
            EpochRecord(
                epoch=epoch,
                metrics={**metrics, "train_loss": 1.0 / epoch, "cost_usd": paid / 1e9, "wall_seconds": wall},
                wall_seconds=seconds,
                cost_nano_usd=cost,
                checkpoint=f"/artifacts/digits/{number}/{epoch}.pt" if is_milestone else None,
                is_milestone=is_milestone,
            )
        )
    batch = int(params.get("batch_per_rank", 32)) * world  # type: ignore[call-overload]
    base = float(params.get("learning_rate", 0.1))  # type: ignore[arg-type]
    facts = {"base_learning_rate": base, "scaled_learning_rate": base * batch / 64, "effective_batch": batch}
    action = {"complete": "continue", "running": "continue", "paused": "pause"}.get(state, "stop")
    reason = {
        "complete": "trained all epochs",
        "pruned": f"rank {number % 7 + 2} of 9 at epoch {depth}: a third goes on",
        "failed": "the loss became NaN",
        "paused": "another trial promises more for a dollar",
    }.get(state, "training")
    attempt = AttemptRecord(
        attempt=1, world_size=world, start_epoch=0, outcome=state, started_at=began, ended_at=ledger.now, facts=facts
    )
    decision = DecisionRecord(epoch=max(depth, 1), action=action, reason=reason)  # type: ignore[arg-type]
    trial = TrialRecord(
        id=number + 1, number=number, state=state, failure="diverged" if state == "failed" else None,
        params=dict(params), world_size=world, reason=reason, epochs=tuple(rows),
        decisions=(decision,) if depth and state != "failed" else (), attempts=(attempt,), paid_nano_usd=paid,
        created_at=began, started_at=began, ended_at=ledger.now,
    )  # fmt: skip
    return replace(trial, **overrides)  # type: ignore[arg-type]


def build_study(
    trials: int = 60,
    *,
    objectives: Sequence[Objective] = TWO,
    seed: int = 0,
    epochs: int = 20,
    states: Sequence[TrialState] = ("complete", "pruned", "failed"),
    **overrides: object,
) -> StudyRecord:
    """A study of so many trials, pruned by rank at epochs 3 and 9 as a pruner would."""
    rng, ledger, records = random.Random(seed), Ledger(), []
    seen: dict[int, list[float]] = {}
    for number in range(trials):
        params = sample(rng)
        depth, state = epochs, states[0]
        for rung in (3, 9):
            level = measured(params, rung, 0.0)["val_error"]
            seen.setdefault(rung, []).append(level)
            if "pruned" in states and rung < epochs and sorted(seen[rung]).index(level) > len(seen[rung]) / 3:
                depth, state = rung, "pruned"
                break
        if number % 17 == 11 and "failed" in states:
            depth, state = 2, "failed"
        if number == trials - 1 and states[-1] in ("running", "paused"):
            depth, state = 3, states[-1]
        records.append(build_trial(number, params, ledger, depth=depth, state=state, epochs=epochs, rng=rng))
        ledger.charge("idle", None, 1, rng.uniform(0, 2))
        if number % 20 == 7:
            ledger.charge("lost", number, 1, 9.0)
    spent = sum(c.cost_nano_usd for c in ledger.charges) / 1e9
    budget = {
        "usd": BudgetLine(limit=spent * 1.02, spent=spent), "hours": BudgetLine(limit=2.0, spent=1.2),
        "trials": BudgetLine(limit=None, spent=float(trials)),
    }  # fmt: skip
    study = StudyRecord(
        id=1, uid="5f1c9a", name="digits", state="closed", stop_reason="budget_usd",
        spec=spec(objectives, epochs, spent), objectives=tuple(objectives), reference_point=None, budget=budget,
        alive_seconds=(ledger.now - START).total_seconds(), trials=tuple(records), charges=tuple(ledger.charges),
        mlflow_uri="https://me:secret-word@mlflow.example/", created_at=START, ended_at=ledger.now,
    )  # fmt: skip
    return replace(study, **overrides)  # type: ignore[arg-type]


def spec(objectives: Sequence[Objective], epochs: int, usd: float) -> dict[str, object]:
    """A spec as a plain mapping with defaults filled in."""
    return {
        "study": "digits",
        "task": "digits",
        "task_options": {},
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in objectives],
        "reference_point": "auto",
        "space": SPACE,
        "training": {"epochs": epochs, "reference_batch": 64, "lr_scaling": "auto", "schedule": "cosine"},
        "search": {"sampler": "tpe", "pruner": {"name": "mo_asha", "grace": 3, "eta": 3}, "seed": 0},
        "budget": {"usd": round(usd * 1.02, 4), "hours": 2.0, "trials": None},
        "mlflow": "https://me:secret-word@mlflow.example/",
    }
