"""Tools about DDP: a real training on this machine, a measured comparison, and the concepts in its figures."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from automl.mcp_server import bounded_training
from automl.mcp_server.machine import Machine, loopback_bytes_per_second, this_machine
from automl.mcp_server.tool import Acting, Backend, Consent, Usd, is_agreed, lacks_consent
from automl.mcp_server.tool_answers import ToolProblem

_REFERENCE_BATCH = 64  # default of the trainer's `reference_batch`
_BYTES_OF_A_NUMBER = 4


_Epochs = Annotated[int, Field(ge=1, le=20)]
_LearningRate = Annotated[float, Field(gt=0, le=10, description="Learning rate at 64 samples a step, before scaling.")]
_Batch = Annotated[int, Field(ge=1, le=4096, description="Samples per rank and step.")]


def run_ddp_simulation(
    backend: Acting,
    *,
    budget_usd: Annotated[Usd, Field(description="Most dollars to spend; it is stopped before it costs more.")],
    ranks: Annotated[int, Field(ge=1, le=16, description="Number of processes, each with its share of the data.")] = 4,
    epochs: Annotated[_Epochs, Field(description="Number of epochs.")] = 1,
    batch_size: _Batch = 32,
    learning_rate: _LearningRate = 0.001,
    confirm_cost_usd: Consent = None,
) -> Mapping[str, Any]:
    """Train handwritten digits with DDP on this machine, for real.

    It returns losses and seconds of each rank, the effective batch and the scaled learning rate. Without
    confirm_cost_usd it only returns the cost.
    """
    _check_may_train(backend)
    machine = this_machine()
    if not is_agreed(budget_usd, confirm_cost_usd):
        expected = _expected("train", ranks, machine)
        return lacks_consent("run_ddp_simulation", budget_usd, confirm_cost_usd, expected)
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["train", "digits", *_parameters(batch_size, learning_rate), "--world-size", str(ranks)]
        arguments += ["--epochs", str(epochs), "--rank-logs", folder, "--json"]
        if ranks > machine.slots:
            arguments += ["--device", "cpu"]  # CPU ranks may share cores
        found = bounded_training.run(arguments, kind="train", ranks=ranks, budget_usd=budget_usd, machine=machine)
        losses = bounded_training.rank_losses(Path(folder), ranks)
    names = ("effective_batch", "reference_batch", "base_learning_rate", "scaled_learning_rate", "lr_scaling",
             "model_parameters", "epochs", "seconds", "cost_usd")  # fmt: skip
    return {"started": True, "ranks": losses, **{name: found[name] for name in names}, "budget_usd": budget_usd}


def compare_ddp_vs_single(
    backend: Acting,
    *,
    budget_usd: Annotated[Usd, Field(description="Most dollars for both; they are stopped before they cost more.")],
    ranks: Annotated[int, Field(ge=2, le=16, description="Number of processes to compare with one process.")] = 2,
    epochs: Annotated[_Epochs, Field(description="Epochs of each training; the first is a warm-up.")] = 2,
    batch_size: _Batch = 32,
    learning_rate: _LearningRate = 0.001,
    confirm_cost_usd: Consent = None,
) -> Mapping[str, Any]:
    """Train the same steps with one rank and with several on this machine.

    It returns measured speed-up, efficiency and dollars. Without confirm_cost_usd it only returns the possible cost.
    """
    _check_may_train(backend)
    machine = this_machine()
    if not is_agreed(budget_usd, confirm_cost_usd):
        expected = _expected("compare", ranks, machine)
        return lacks_consent("compare_ddp_vs_single", budget_usd, confirm_cost_usd, expected)
    arguments = ["compare", "digits", *_parameters(batch_size, learning_rate), "--world-sizes", f"1,{ranks}"]
    arguments += ["--epochs", str(epochs), "--json"]
    found = bounded_training.run(arguments, kind="compare", ranks=ranks, budget_usd=budget_usd, machine=machine)
    single, ddp = found["world_sizes"]
    return {
        "started": True, "single": single, "ddp": ddp, "speed_up": ddp["speed_up"], "efficiency": ddp["efficiency"],
        "usd_per_epoch": {"single": single["usd_per_epoch"], "ddp": ddp["usd_per_epoch"]},
        "effective_batch": found["effective_batch"], "scaled_learning_rate": found["scaled_learning_rate"],
        "warnings": found["warnings"], "seconds": found["seconds"], "cost_usd": found["cost_usd"],
        "budget_usd": budget_usd,
    }  # fmt: skip


def explain_ddp_concepts(
    *,
    ranks: Annotated[int, Field(ge=1, le=1024, description="Number of processes.")] = 4,
    batch_size: Annotated[int, Field(ge=1, le=10**6, description="Samples per rank and step.")] = 32,
    learning_rate: Annotated[float, Field(gt=0, le=10, description="Learning rate at 64 samples a step.")] = 0.001,
    model_parameters: Annotated[int, Field(ge=1, le=10**12, description="Model parameters.")] = 1_000_000,
) -> Mapping[str, Any]:
    """Explain DDP with figures of this machine: slots, cores, bandwidth, scaling of the learning rate."""
    machine, bandwidth = this_machine(), loopback_bytes_per_second()
    return explained(machine, bandwidth, ranks, batch_size, learning_rate, model_parameters)


def explained(  # noqa: PLR0917 - figures, in the order of the tool
    machine: Machine, bytes_per_second: float, ranks: int, batch_size: int, learning_rate: float, model_parameters: int
) -> dict[str, Any]:
    """Return the concepts of DDP with figures. `bytes_per_second` is the measured exchange rate of two processes."""
    from trainers.model.learning_rate import scale  # loaded late, because only this function needs torch

    effective = ranks * batch_size
    ratio = effective / _REFERENCE_BATCH
    gradient_bytes = _BYTES_OF_A_NUMBER * model_parameters
    sent = 2 * (ranks - 1) / ranks * gradient_bytes
    rates = {rule: scale(learning_rate, ratio, rule) for rule in ("linear", "sqrt", "none")}
    crowded = ranks > machine.slots
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
            "usd_an_hour": machine.usd(ranks, 3600.0),
        },
        "concepts": {
            "data_parallelism": f"each of {ranks} ranks has the whole model and its own share of the data",
            "effective_batch": f"a step sees {ranks} x {batch_size} = {effective} samples",
            "all_reduce": f"after each step the ranks average {gradient_bytes:,} bytes of gradients; in a ring each "
            f"sends 2 (n - 1) / n of them, {sent:,.0f} bytes: at least {1e3 * sent / bytes_per_second:.3g} ms here",
            "learning_rate": f"{effective} samples are {ratio:g} times the {_REFERENCE_BATCH} of the learning rate, so "
            f"{learning_rate:g} becomes {rates['linear']:g} by the linear rule (SGD) and {rates['sqrt']:g} by "
            "the square root rule (Adam types)",
            "slots": f"{ranks} ranks on {machine.slots} slots "
            + ("share devices: they will be slower than one rank per slot" if crowded else "have a slot each"),
            "money": f"a second of {ranks} ranks costs {machine.usd(ranks, 1.0):.3g} dollars; DDP saves "
            "time, and would save money only at an efficiency above 1",
        },
        "next": "compare_ddp_vs_single measures the efficiency here",
    }


def _parameters(batch_size: int, learning_rate: float) -> list[str]:
    return ["--param", f"batch_per_rank={batch_size}", "--param", f"learning_rate={learning_rate!r}"]


def _expected(kind: str, ranks: int, machine: Machine) -> dict[str, Any]:
    seconds, how = bounded_training.expected_seconds(kind, ranks)
    price = f"{ranks} slots at ${machine.usd_per_slot_hour:g} an hour ({machine.price_source})"
    expected = machine.usd(ranks, seconds)
    return {"expected_usd": expected, "expected_cost": f"about ${expected:.3g}: {seconds:.0f} s ({how}) of {price}"}


def _check_may_train(backend: Backend) -> None:
    if why := backend.why_no_training_here():
        raise ToolProblem(why, "run `automl mcp` on your own machine, or launch a study with world_size in its space")


CHANGING = (run_ddp_simulation, compare_ddp_vs_single)
READING = (explain_ddp_concepts,)
