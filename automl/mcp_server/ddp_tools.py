"""Tools about DDP: a real training on this machine, a measured comparison, and the concepts in its figures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from automl.mcp_server import bounded_training
from automl.mcp_server.answers import ToolProblem
from automl.mcp_server.backend import Backend
from automl.mcp_server.machine import Machine, loopback_bytes_per_second, this_machine
from automl.mcp_server.reading_tools import in_thread
from automl.mcp_server.spending import CONSENT, Usd, is_agreed, lacks_consent
from automl.mcp_server.tool import Arguments, ServedTool

_REFERENCE_BATCH = 64
"""Default of the trainer's `reference_batch`."""
_BYTES_OF_A_NUMBER = 4


class Simulation(Arguments):
    """A training of several ranks."""

    ranks: int = Field(4, ge=1, le=16, description="Number of processes, each with its share of the data.")
    epochs: int = Field(1, ge=1, le=20, description="Number of epochs.")
    batch_size: int = Field(32, ge=1, le=4096, description="Samples of a rank and a step.")
    learning_rate: float = Field(0.001, gt=0, le=10, description="Learning rate at 64 samples a step, before scaling.")
    budget_usd: Usd = Field(description="Dollars that it may cost; it is ended before it costs more.")
    confirm_cost_usd: Usd | None = Field(None, description=CONSENT)


class Comparison(Arguments):
    """Trainings of one and of several ranks."""

    ranks: int = Field(2, ge=2, le=16, description="Number of processes that one is compared with.")
    epochs: int = Field(2, ge=1, le=20, description="Epochs of each; the first warms up.")
    batch_size: int = Field(32, ge=1, le=4096, description="Samples of a rank and a pass.")
    learning_rate: float = Field(0.001, gt=0, le=10, description="Learning rate at 64 samples a step, before scaling.")
    budget_usd: Usd = Field(description="Dollars that both may cost; they are ended before they cost more.")
    confirm_cost_usd: Usd | None = Field(None, description=CONSENT)


class Concepts(Arguments):
    """What is put into figures."""

    ranks: int = Field(4, ge=1, le=1024, description="Number of processes.")
    batch_size: int = Field(32, ge=1, le=10**6, description="Samples of a rank and a step.")
    learning_rate: float = Field(0.001, gt=0, le=10, description="Learning rate at 64 samples a step.")
    model_parameters: int = Field(1_000_000, ge=1, le=10**12, description="Numbers in the model.")


async def run_ddp_simulation(backend: Backend, given: Simulation) -> Mapping[str, Any]:
    """Train the digits with DDP, and return what each rank did."""
    _check_may_train(backend)
    machine = await in_thread(this_machine)
    if not is_agreed(given.budget_usd, given.confirm_cost_usd):
        expected = _expected("train", given.ranks, machine)
        return lacks_consent("run_ddp_simulation", given.budget_usd, given.confirm_cost_usd, expected)
    return dict(await in_thread(lambda: _simulated(given, machine)))


async def compare_ddp_vs_single(backend: Backend, given: Comparison) -> Mapping[str, Any]:
    """Train the same steps with one rank and with several, and compare."""
    _check_may_train(backend)
    machine = await in_thread(this_machine)
    if not is_agreed(given.budget_usd, given.confirm_cost_usd):
        expected = _expected("compare", given.ranks, machine)
        return lacks_consent("compare_ddp_vs_single", given.budget_usd, given.confirm_cost_usd, expected)
    return dict(await in_thread(lambda: _compared(given, machine)))


async def explain_ddp_concepts(_: Backend, given: Concepts) -> Mapping[str, Any]:
    """Say what DDP does, with the figures of this machine."""
    machine, bandwidth = await in_thread(this_machine), await in_thread(loopback_bytes_per_second)
    return explained(given, machine, bandwidth)


def explained(given: Concepts, machine: Machine, bytes_per_second: float) -> dict[str, Any]:
    """Return the concepts of DDP with figures.

    Args:
        given: Ranks, batch, learning rate and model.
        machine: This machine.
        bytes_per_second: How fast two of its processes exchange bytes.
    """
    from trainers.scaling import scale  # loads torch's neighbours; nothing else here needs them

    effective = given.ranks * given.batch_size
    ratio = effective / _REFERENCE_BATCH
    gradient_bytes = _BYTES_OF_A_NUMBER * given.model_parameters
    sent = 2 * (given.ranks - 1) / given.ranks * gradient_bytes
    rates = {rule: scale(given.learning_rate, ratio, rule) for rule in ("linear", "sqrt", "none")}
    crowded = given.ranks > machine.slots
    return {
        "machine": {
            "slots": machine.slots,
            "device": machine.device_name,
            "cores": machine.cores,
            "usd_per_slot_hour": machine.usd_per_slot_hour,
            "loopback_bytes_per_second": round(bytes_per_second),
        },
        "figures": {
            "effective_batch": effective,
            "ratio_to_reference_batch": ratio,
            "scaled_learning_rates": rates,
            "gradient_bytes": gradient_bytes,
            "bytes_sent_by_each_rank_and_step": round(sent),
            "least_seconds_of_an_exchange": sent / bytes_per_second,
            "usd_an_hour": machine.usd(given.ranks, 3600.0),
        },
        "concepts": {
            "data_parallelism": f"each of {given.ranks} ranks has the whole model and its own share of the data",
            "effective_batch": f"a step sees {given.ranks} x {given.batch_size} = {effective} samples",
            "all_reduce": f"after each step the ranks average {gradient_bytes:,} bytes of gradients; in a ring each "
            f"sends 2 (n - 1) / n of them, {sent:,.0f} bytes: at least {1e3 * sent / bytes_per_second:.3g} ms here",
            "learning_rate": f"{effective} samples are {ratio:g} times the {_REFERENCE_BATCH} that it is meant for, so "
            f"{given.learning_rate:g} becomes {rates['linear']:g} by the linear rule (SGD) and {rates['sqrt']:g} by "
            "the square root (Adam types)",
            "slots": f"{given.ranks} ranks on {machine.slots} slots "
            + ("share devices: they will be slower than one for each slot" if crowded else "have a slot each"),
            "money": f"a second of {given.ranks} ranks costs {machine.usd(given.ranks, 1.0):.3g} dollars; DDP saves "
            "time, and would save money only at an efficiency above 1",
        },
        "next": "compare_ddp_vs_single measures the efficiency here",
    }


def _simulated(given: Simulation, machine: Machine) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["train", "digits", *_parameters(given), "--world-size", str(given.ranks)]
        arguments += ["--epochs", str(given.epochs), "--rank-logs", folder, "--json"]
        if given.ranks > machine.slots:
            arguments += ["--device", "cpu"]  # whose ranks may share cores
        found = bounded_training.run(
            arguments, kind="train", ranks=given.ranks, budget_usd=given.budget_usd, machine=machine
        )
        ranks = bounded_training.rank_losses(Path(folder), given.ranks)
    names = ("effective_batch", "reference_batch", "base_learning_rate", "scaled_learning_rate", "lr_scaling",
             "model_parameters", "epochs", "seconds", "cost_usd")  # fmt: skip
    return {"started": True, "ranks": ranks, **{name: found[name] for name in names}, "budget_usd": given.budget_usd}


def _compared(given: Comparison, machine: Machine) -> dict[str, Any]:
    arguments = ["compare", "digits", *_parameters(given), "--world-sizes", f"1,{given.ranks}"]
    arguments += ["--epochs", str(given.epochs), "--json"]
    found = bounded_training.run(
        arguments, kind="compare", ranks=given.ranks, budget_usd=given.budget_usd, machine=machine
    )
    single, ddp = found["world_sizes"]
    return {
        "started": True, "single": single, "ddp": ddp, "speed_up": ddp["speed_up"], "efficiency": ddp["efficiency"],
        "usd_per_epoch": {"single": single["usd_per_epoch"], "ddp": ddp["usd_per_epoch"]},
        "effective_batch": found["effective_batch"], "scaled_learning_rate": found["scaled_learning_rate"],
        "warnings": found["warnings"], "seconds": found["seconds"], "cost_usd": found["cost_usd"],
        "budget_usd": given.budget_usd,
    }  # fmt: skip


def _parameters(given: Simulation | Comparison) -> list[str]:
    return ["--param", f"batch_per_rank={given.batch_size}", "--param", f"learning_rate={given.learning_rate!r}"]


def _expected(kind: str, ranks: int, machine: Machine) -> dict[str, Any]:
    seconds, how = bounded_training.expected_seconds(kind, ranks)
    price = f"{ranks} slots at ${machine.usd_per_slot_hour:g} an hour ({machine.price_source})"
    expected = machine.usd(ranks, seconds)
    return {"expected_usd": expected, "expected_cost": f"about ${expected:.3g}: {seconds:.0f} s ({how}) of {price}"}


def _check_may_train(backend: Backend) -> None:
    if why := backend.why_no_training_here():
        raise ToolProblem(why, "run `automl mcp` on your own machine, or launch a study with world_size in its space")


TOOLS = (
    ServedTool(
        name="run_ddp_simulation", arguments=Simulation, run=run_ddp_simulation, changes=True,
        description="Train handwritten digits with DDP on this machine, for real, and return losses and seconds of "
        "each rank, the effective batch and the scaled learning rate. Without confirm_cost_usd it says what it costs.",
    ),
    ServedTool(
        name="compare_ddp_vs_single", arguments=Comparison, run=compare_ddp_vs_single, changes=True,
        description="Train the same steps with one rank and with several on this machine, and return measured "
        "speed-up, efficiency and dollars. Without confirm_cost_usd it says what it may cost.",
    ),
    ServedTool(
        name="explain_ddp_concepts", arguments=Concepts, run=explain_ddp_concepts,
        description="Explain DDP with figures of this machine: slots, cores, bandwidth, scaling of the learning rate.",
    ),
)  # fmt: skip
