"""`automl export-cluster`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from automl.clusters.allocation_options import allocation_of, nodes_options, slurm_options
from automl.clusters.manifests import Machines, Target, write_manifests
from automl.clusters.slurm_script import write_job
from automl.launching.spec_reading import read_spec
from automl.terminal.echo import echo
from automl.terminal.options import file_type, json_option, param_option, store_option
from automl.terminal.output import print_json, warn

_spec = click.argument("spec", type=file_type)
_folder = click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", required=True, help="Folder to write; new or empty."
)
_image = click.option(
    "--image", metavar="NAME:TAG", help="Name and tag of the container image; the study's name by default."
)


def _machines(command: Callable[..., None]) -> Callable[..., None]:
    return _spec(_folder(nodes_options(_image(command))))


@click.group(name="export-cluster")
def export_cluster() -> None:
    """Write files that run studies on SLURM, Kubernetes or Docker Compose."""


@export_cluster.command()
@_spec
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Script to write; STUDY.sbatch by default."
)
@slurm_options
@store_option
@json_option
def slurm(spec: Path, out: Path | None, store: str | None, *, as_json: bool, **given: Any) -> None:
    """Write an sbatch script that runs the study of SPEC on SLURM.

    The job starts Ray on its nodes. Before the time limit, trials write checkpoints, and the job queues itself again
    until the study's budget is used up.
    """
    parsed = read_spec(spec, (), store)
    script, warnings = write_job(parsed, spec, allocation_of(given), out)
    for line in warnings:
        warn(line)
    if as_json:
        print_json({"study": parsed.study, "out": str(script)})
        return
    echo(f"{script} runs the study {parsed.study}. To submit it:\n\nsbatch {script.name}")


@export_cluster.command()
@_machines
@json_option
def kuberay(spec: Path, out: Path, *, as_json: bool, **given: Any) -> None:
    """Write the files that run the study of SPEC on Kubernetes.

    Writes a KubeRay RayJob, whose Ray cluster runs only this study, and the files to build its container image.
    """
    _write("kuberay", spec, out, given, as_json=as_json)


@export_cluster.command()
@_machines
@param_option
@click.option("--epochs", type=click.IntRange(1), help="Number of epochs; the number in the spec by default.")
@json_option
def pytorchjob(
    spec: Path, out: Path, given: tuple[str, ...], *, epochs: int | None, as_json: bool, **machines: Any
) -> None:
    """Write a Kubeflow PyTorchJob that trains the task of SPEC once.

    The job has --nodes pods, each with one rank per GPU, or one rank without GPUs. Also writes files to build the
    container image.
    """
    _write("pytorchjob", spec, out, machines, as_json=as_json, training={"given": given, "epochs": epochs})


@export_cluster.command()
@_machines
@json_option
def compose(spec: Path, out: Path, *, as_json: bool, **given: Any) -> None:
    """Write a Docker Compose file for the service.

    The file starts PostgreSQL, MLflow, the service and a worker. The worker uses all CPUs of the machine, or
    --cpus-per-task CPUs, or --gpus-per-node GPUs. Also writes the files to build the container image.
    """
    _write("compose", spec, out, given, as_json=as_json)


@export_cluster.command()
@_machines
@json_option
def kustomize(spec: Path, out: Path, *, as_json: bool, **given: Any) -> None:
    """Write a kustomize base that runs the service on Kubernetes.

    The base starts the service and --nodes workers. Also writes the files to build the container image.
    """
    _write("kustomize", spec, out, given, as_json=as_json)


def _write(
    target: Target, spec: Path, out: Path, given: dict[str, Any], *, as_json: bool, training: Any = None
) -> None:
    parsed = read_spec(spec, (), None)
    machines = Machines(cpus_per_node=given.pop("cpus_per_task"), **given)
    write_manifests(target, parsed, file=spec, machines=machines, out=out, training=training)
    if as_json:
        print_json({"study": parsed.study, "out": str(out)})
        return
    echo(f"Wrote the {target} files of {parsed.study} to {out}. Next: follow {out / 'README.md'}")
