"""`automl export-cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from automl.clusters.options import allocation_of, slurm_options
from automl.clusters.slurm_job import write_job
from automl.launching.reading import read_spec
from automl.terminal.echo import echo
from automl.terminal.options import file_type, json_option, store_option
from automl.terminal.output import print_json, warn

_spec = click.argument("spec", type=file_type)


@click.group(name="export-cluster")
def export_cluster() -> None:
    """Write what runs the study of SPEC on a cluster: SLURM, Kubernetes or compose."""


@export_cluster.command()
@_spec
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The script; STUDY.sbatch by default.")
@slurm_options
@store_option
@json_option
def slurm(spec: Path, out: Path | None, store: str | None, *, as_json: bool, **given: Any) -> None:
    """Write an sbatch script that runs the study of SPEC, over as many time limits as its budget takes.

    It brings up Ray over the nodes of the job. Before the time limit the study drains, and the job queues again.
    """
    parsed = read_spec(spec, (), store)
    script, warnings = write_job(parsed, spec, allocation_of(given), out)
    for line in warnings:
        warn(line)
    if as_json:
        print_json({"study": parsed.study, "out": str(script)})
        return
    echo(f"{script} runs the study {parsed.study}. To submit it:\n\nsbatch {script.name}")
