"""`automl predict`."""

from pathlib import Path

import click

from automl.predicting.predict_rows import opened_model, predict_file, summary
from automl.terminal.echo import echo
from automl.terminal.options import json_option
from automl.terminal.output import counted, print_json


@click.command()
@click.argument("model", metavar="PATH|models:/NAME@ALIAS")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write: .csv, .jsonl or .parquet.")
@click.option("--column", help="Column with the texts or images; needed if DATA has several columns.")
@click.option("--id", "id_column", metavar="COLUMN", help="Column of DATA to write beside each prediction.")
@click.option("--device", default="cpu", show_default=True, help="Device that computes the predictions, such as cuda.")
@click.option("--trust", is_flag=True, help="Load a .pt2 file of another author, which can run any code.")
@click.option("--mlflow", help="Tracking URI of the MLflow registry that holds models:/NAME@ALIAS.")
@json_option
def predict(  # noqa: PLR0917 - click passes each option by name
    model: str, data: Path, out: Path | None, column: str | None, id_column: str | None, device: str, trust: bool,
    mlflow: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Predict each row of DATA with an exported model.

    The model is a folder, a .pt2 or .onnx file, or in MLflow's registry models:/NAME@champion or models:/NAME/VERSION.

    DATA is a CSV, TSV, Parquet or JSON lines file, a .txt file with one text per line, an image, or a folder of images.
    It may be larger than the memory. Columns unknown to the model are listed and ignored. Without --out, prints CSV.
    """
    if as_json and out is None:
        raise click.UsageError("--json needs --out: without --out the predictions go to stdout")
    if model.startswith("models:/"):
        from automl.registry.registered import local_model  # which takes most of a second to import

        with local_model(model, mlflow) as (place, _):
            loaded = opened_model(place, device, trust=trust)
    else:
        loaded = opened_model(Path(model), device, trust=trust)
    with counted(shown=out is not None) as show:
        count = predict_file(
            loaded, data, out, column=column, id_column=id_column, on_batch=show,
            on_note=lambda line: echo(line, err=True),
        )  # fmt: skip
    if as_json:
        print_json(summary(loaded, model, count, out))
    elif out is not None:
        echo(f"{out.absolute()} has the predictions for {count} rows.")
