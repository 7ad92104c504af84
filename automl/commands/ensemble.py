"""`automl ensemble`."""

from pathlib import Path

import click

from automl.exporting.exports import Target, check_target
from automl.stored.open_store import check_launched, open_store
from automl.terminal.echo import echo
from automl.terminal.options import docker_option, json_option, only_docker, store_option, study_argument
from automl.terminal.output import print_json
from reports.phrases import plural, usd, value_in_words
from studies.storage.reading.reader import load_study


@click.command()
@study_argument
@click.option(
    "--size", type=click.IntRange(1, 1000), default=20, show_default=True,
    help="Largest number of members. A model can be a member several times.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write; STUDY-ensemble by default.")
@click.option(
    "--format", "form", type=click.Choice(["package", "mlflow"]),
    help="Format of the written folder; package by default.",
)  # fmt: skip
@docker_option
@store_option
@json_option
def ensemble(  # noqa: PLR0917 - click passes each option by name
    study: str, size: int, out: Path | None, form: Target | None, docker: Path | None, store: str | None, as_json: bool
) -> None:
    """Combine saved models of a study into one model.

    Chooses members greedily by their error on validation data. Candidates are the study's best saved models and models
    of `automl confirm --keep-models`. The written folder is a model for `automl predict` and `automl serve-model`, or
    with --format mlflow for MLflow.
    """
    if docker is not None:
        out, form = only_docker(docker, out, form), "docker"
    opened = open_store(store)
    row, record = opened.require(study), load_study(opened, study)
    check_launched(record.spec, record.name)
    out = Path(f"{study}-ensemble") if out is None else out
    check_target(out, form or "package")
    from automl.exporting.ensembles import write_ensemble  # loads torch, which takes seconds

    price = row.usd_per_slot_hour
    if price is None:
        price = record.charges[-1].usd_per_slot_hour if record.charges else 0.0
    made = write_ensemble(
        record, out, base_folder=row.base_folder, size=size, usd_per_slot_hour=price, form=form or "package"
    )
    if as_json:
        print_json(made)
        return
    if made["instead_of"]:
        echo(
            f"Members are chosen by {made['metric']}, because the study's first objective, {made['instead_of']}, "
            "cannot be computed from predictions."
        )
    for part in ("validation", "test"):
        found = made[part]
        if found is not None:
            ours, best = (value_in_words(made["metric"], found[name]) for name in ("ensemble", "best_member"))
            echo(f"{part} {made['metric']}: {ours} for the ensemble, {best} for its best member {made['best_member']}")
    members = ", ".join(f"{one['model']} x {one['weight']}" for one in made["members"])
    echo(f"{plural(len(made['members']), 'member')} from {made['candidates']} saved models: {members}")
    echo(
        f"A prediction takes {1000 * made['seconds_per_prediction']:.3g} ms and costs {usd(made['usd_per_prediction'])}"
    )
    echo(f"Written to {made['out']}. To use it: {_use(made['format'], made['out'])}")


def _use(form: str, out: str) -> str:
    if form == "mlflow":
        return f"mlflow models serve --model-uri {out}"
    return f"docker build {out}" if form == "docker" else f"automl predict {out} DATA, or automl serve-model {out}"
