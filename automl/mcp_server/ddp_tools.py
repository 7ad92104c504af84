"""Tools about DDP: train here, compare DDP with one process, explain concepts."""

import ast
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from automl.given_parameters import task_name
from automl.mcp_server import bounded_training
from automl.mcp_server.bounded_training import Machine, loopback_bytes_per_second, this_machine
from automl.mcp_server.tool import Acting, Backend, Consent, ToolProblem, Usd, is_agreed, lacks_consent
from trainers.contract.task_loading import built_in_tasks

_REFERENCE_BATCH = 64  # default of the trainer's `reference_batch`
_BYTES_OF_A_NUMBER = 4
_Epochs = Annotated[int, Field(ge=1, le=20)]
_LearningRate = Annotated[float, Field(gt=0, le=10, description="Learning rate at 64 samples a step, before scaling.")]
_Batch = Annotated[int, Field(ge=1, le=4096, description="Samples per rank and step.")]
_Task = Annotated[str, Field(max_length=200, description="A built-in task, or code.py:NAME of a task or function.")]
_Params = Annotated[dict[str, Any], Field(description="Further parameters of the task or function, by name.")]
_GUIDE = Path(__file__).with_name("ddp_guide.md")
_WORTH_IT = 0.8  # efficiency from which another rank is worth its cost


def run_ddp_simulation(
    backend: Acting,
    *,
    budget_usd: Annotated[Usd, Field(description="Most dollars to spend; it is stopped before it costs more.")],
    ranks: Annotated[int, Field(ge=1, le=16, description="Number of processes, each with its share of the data.")] = 4,
    epochs: Annotated[_Epochs, Field(description="Number of epochs.")] = 1,
    batch_size: _Batch = 32,
    learning_rate: _LearningRate = 0.001,
    task: _Task = "digits",
    params: _Params = {},  # noqa: B006 - a default of the tool's schema, which is not changed
    mlflow: Annotated[
        str | None, Field(max_length=300, description="Tracking URI that gets the training as a run; null: no run.")
    ] = None,
    confirm_cost_usd: Consent = None,
) -> Mapping[str, Any]:
    """Train a task with DDP on this machine.

    Returns losses and seconds of each rank, effective batch and scaled learning rate; without confirm_cost_usd, only
    the expected cost.
    """
    _check_may_train(backend, task, mlflow)
    machine = this_machine()
    if not is_agreed(budget_usd, confirm_cost_usd):
        expected = _expected("train", ranks, machine)
        return lacks_consent("run_ddp_simulation", budget_usd, confirm_cost_usd, expected)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        arguments = ["train", task, *_parameters(batch_size, learning_rate, params), "--world-size", str(ranks)]
        arguments += ["--epochs", str(epochs), "--json"]
        has_own_steps = is_function(task)
        arguments += [] if has_own_steps else ["--rank-logs", folder]
        arguments += ["--store", f"sqlite:///{folder}/automl.db", "--checkpoints", folder]
        arguments += ["--mlflow", mlflow] if mlflow else []
        if ranks > machine.slots:
            arguments += ["--device", "cpu"]  # CPU ranks may share cores
        found = bounded_training.run(arguments, kind="train", ranks=ranks, budget_usd=budget_usd, machine=machine)
        losses = None if has_own_steps else bounded_training.rank_losses(Path(folder), ranks)
    names = ("effective_batch", "reference_batch", "base_learning_rate", "scaled_learning_rate", "lr_scaling",
             "model_parameters", "epochs", "seconds", "cost_usd")  # fmt: skip
    figures = {name: found[name] for name in names}
    last = found["epochs"][-1]["metrics"] if found["epochs"] else {}
    return {"started": True, "ranks": losses, "metrics": last, **figures, "budget_usd": budget_usd}


def is_function(task: str) -> bool:
    """Return whether a task's name means a training function in this folder, without importing it."""
    module, _, name = task_name(task).partition(":")
    file = Path(f"{module.replace('.', '/')}.py")
    if not name or not file.is_file():
        return False
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):  # the training will report it
        return False
    return any(isinstance(one, ast.FunctionDef) and one.name == name for one in body)


def compare_ddp_vs_single(
    backend: Acting,
    *,
    budget_usd: Annotated[Usd, Field(description="Most dollars for both; they are stopped before they cost more.")],
    ranks: Annotated[int, Field(ge=2, le=16, description="Number of processes to compare with one process.")] = 2,
    epochs: Annotated[_Epochs, Field(description="Epochs of each training; the first is a warm-up.")] = 2,
    batch_size: _Batch = 32,
    learning_rate: _LearningRate = 0.001,
    task: _Task = "digits",
    params: _Params = {},  # noqa: B006 - a default of the tool's schema, which is not changed
    confirm_cost_usd: Consent = None,
) -> Mapping[str, Any]:
    """Train the same steps with one rank and with several on this machine.

    Returns measured speed-up, efficiency and dollars; without confirm_cost_usd, only the expected cost.
    """
    _check_may_train(backend, task)
    machine = this_machine()
    if not is_agreed(budget_usd, confirm_cost_usd):
        expected = _expected("compare", ranks, machine)
        return lacks_consent("compare_ddp_vs_single", budget_usd, confirm_cost_usd, expected)
    arguments = ["compare", task, *_parameters(batch_size, learning_rate, params), "--world-sizes", f"1,{ranks}"]
    arguments += ["--epochs", str(epochs), "--json"]
    found = bounded_training.run(arguments, kind="compare", ranks=ranks, budget_usd=budget_usd, machine=machine)
    single, ddp = found["world_sizes"]
    return {
        "started": True, "single": single, "ddp": ddp, "speed_up": ddp["speed_up"], "efficiency": ddp["efficiency"],
        "usd_per_epoch": {"single": single["usd_per_epoch"], "ddp": ddp["usd_per_epoch"]},
        "effective_batch": found["effective_batch"], "scaled_learning_rate": found["scaled_learning_rate"],
        "warnings": found["warnings"], "seconds": found["seconds"], "cost_usd": found["cost_usd"],
        "budget_usd": budget_usd, "when_to_use_which": when_to_use_which(ranks, ddp),
    }  # fmt: skip


def when_to_use_which(ranks: int, measured: Mapping[str, Any]) -> str:
    """Return advice on the number of ranks, from measured speed-up and efficiency."""
    speed_up, efficiency = measured["speed_up"], measured["efficiency"]
    figures = f"{ranks} ranks are {speed_up:.2f} times as fast as one and cost {1 / efficiency:.2f} times as much"
    if speed_up <= 1:
        advice = "Use one rank here: the exchange of gradients takes longer than a rank saves. A larger model or batch "
        return f"{figures}. {advice}per rank computes longer between exchanges."
    if efficiency < _WORTH_IT:
        return f"{figures}. Use {ranks} ranks if time counts more than money, else one rank, and more trials at once."
    return f"{figures}. Use {ranks} ranks: they save time for little money. Use one rank for the lowest cost."


def explain_ddp_concepts(
    *,
    ranks: Annotated[int, Field(ge=1, le=1024, description="Number of processes.")] = 4,
    batch_size: Annotated[int, Field(ge=1, le=10**6, description="Samples per rank and step.")] = 32,
    learning_rate: Annotated[float, Field(gt=0, le=10, description="Learning rate at 64 samples a step.")] = 0.001,
    model_parameters: Annotated[int, Field(ge=1, le=10**12, description="Model parameters.")] = 1_000_000,
    topic: Annotated[
        str | None,
        Field(max_length=100, description="Words such as LOCAL_RANK, sampler, gloo or mistakes; null: this machine."),
    ] = None,
) -> Mapping[str, Any]:
    """Explain DDP, with this machine's figures or the guide's sections about a topic."""
    if topic is not None:
        return about(topic)
    machine, bandwidth = this_machine(), loopback_bytes_per_second()
    return explained(machine, bandwidth, ranks, batch_size, learning_rate, model_parameters)


def explained(  # noqa: PLR0917 - figures, in the order of the tool
    machine: Machine, bytes_per_second: float, ranks: int, batch_size: int, learning_rate: float, model_parameters: int
) -> dict[str, Any]:
    """Explain DDP with figures. `bytes_per_second`: measured exchange rate of two processes."""
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


def about(topic: str) -> dict[str, Any]:
    """Return the guide's two best sections about a topic. Raises ToolProblem, with all titles, if no section fits."""
    title, *parts = re.split(r"^## ", _GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
    words = re.findall(r"\w{3,}", topic.lower())
    scores = {
        name: sum(name.lower().count(word) + text.lower().count(word) / len(text) for word in words)
        for name, text in sections.items()
    }
    best = sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])[:2]
    if not best:
        raise ToolProblem(
            f"topic: the guide has no section on {topic!r}", f"ask for one of these sections: {'; '.join(sections)}"
        )
    return {
        "topic": topic, "sections": {name: sections[name] for name in best},
        "other_sections": [name for name in sections if name not in best],
        "source": f"docs/ddp.md, {title.lstrip('# ').partition(chr(10))[0]}",
    }  # fmt: skip


def _parameters(batch_size: int, learning_rate: float, params: Mapping[str, Any]) -> list[str]:
    chosen = {"batch_per_rank": batch_size, "learning_rate": learning_rate, **params}
    return [part for name, value in chosen.items() for part in ("--param", f"{name}={json.dumps(value)}")]


def _expected(kind: str, ranks: int, machine: Machine) -> dict[str, Any]:
    seconds, how = bounded_training.expected_seconds(kind, ranks)
    price = f"{ranks} slots at ${machine.usd_per_slot_hour:g} an hour ({machine.price_source})"
    expected = machine.usd(ranks, seconds)
    return {"expected_usd": expected, "expected_cost": f"about ${expected:.3g}: {seconds:.0f} s ({how}) of {price}"}


def _check_may_train(backend: Backend, task: str, mlflow: str | None = None) -> None:
    own_code = task not in built_in_tasks() or mlflow is not None
    if why := backend.why_no_training_here(own_code=own_code):
        raise ToolProblem(why, "run `automl mcp` on your own machine, or launch a study with world_size in its space")


CHANGING = (run_ddp_simulation, compare_ddp_vs_single)
READING = (explain_ddp_concepts,)
