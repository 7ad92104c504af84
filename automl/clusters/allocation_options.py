"""Options of commands that ask a cluster for machines."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from automl.clusters.slurm_script import Allocation

_Command = TypeVar("_Command", bound=Callable[..., Any])
CPUS_PER_GPU = 4  # default CPUs for each GPU of a node, or for a node without GPUs


def nodes_options(command: _Command) -> _Command:
    """Add options for the number and size of a cluster's nodes."""
    for option in (
        click.option(
            "--cpus-per-task",
            type=click.IntRange(1),
            metavar="N",
            help="Number of CPUs per node; by default 4 for each GPU, or 4 without GPUs.",
        ),
        click.option(
            "--gpus-per-node", type=click.IntRange(0), default=0, show_default=True, help="Number of GPUs per node."
        ),
        click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of nodes."),
    ):
        command = option(command)
    return command


def slurm_options(command: _Command) -> _Command:
    """Add the options of a SLURM job, which `allocation_of` reads."""
    for option in (
        click.option(
            "--warning-seconds", type=click.IntRange(1), default=300, show_default=True,
            help="Seconds before the time limit at which the study starts to save its trials.",
        ),
        click.option("--account", help="SLURM account that pays for the job."),
        click.option("--partition", help="SLURM partition to run in."),
        click.option("--time", default="04:00:00", show_default=True, help="Time limit of a run in SLURM's format."),
    ):  # fmt: skip
        command = option(command)
    return nodes_options(command)


def allocation_of(given: dict[str, Any]) -> Allocation:
    """Return the allocation of the options of `slurm_options`."""
    cpus = given["cpus_per_task"] or cpus_of_node(given["gpus_per_node"])
    return Allocation(**{one.name: given[one.name] for one in fields(Allocation)} | {"cpus_per_task": cpus})


def cpus_of_node(gpus: int) -> int:
    """Return a node's default number of CPUs."""
    return CPUS_PER_GPU * max(gpus, 1)
