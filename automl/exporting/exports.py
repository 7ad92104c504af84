"""`automl export`: writes a study's saved model as a stand-alone model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from automl.exporting.atomic_outputs import ExportError, as_a_line, check_new_folder
from automl.exporting.origins import FOLDERS, ensemble_origin, kept_ensemble, named_point, origin_of, values_at
from automl.stored.open_store import kept_checkpoint
from search_spaces.untrusted_text import redact_deep
from studies.records.records import ConfirmationRecord, StudyRecord
from studies.storage.schema.engine import StoreError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from automl.exporting.source import Source

Format = Literal["weights", "package", "torch-export", "onnx", "mlflow"]
Target = Format | Literal["docker"]  # a format, or the folder of an image that serves a package
FORMATS: tuple[Format, ...] = get_args(Format)
_BY_ENDING: Mapping[str, Format] = {".pt2": "torch-export", ".onnx": "onnx", "": "package"}
ENDINGS: Mapping[Target, str] = {"weights": ".pt", **{form: ending for ending, form in _BY_ENDING.items()}}
"""Default file name endings by format."""


def format_of(out: Path) -> Format:
    """Return the format for a path's ending: package without an ending, weights for an unknown ending."""
    return _BY_ENDING.get(out.suffix, "weights")


def check_target(out: Path, form: Target) -> None:
    """Raise StoreError if the parent of `out` is missing, ExportError if the export would replace a folder."""
    if not out.absolute().parent.is_dir():
        raise StoreError(f"--out: {str(out)!r} cannot be written: there is no folder {str(out.absolute().parent)!r}")
    if form in FOLDERS:
        check_new_folder(out)
    elif form != "weights" and out.is_dir():
        raise ExportError(f"--out: {str(out)!r} is a folder, and --format {form} writes a file. Name a file")


def export_point(
    record: StudyRecord,
    point: str,
    out: Path,
    *,
    base_folder: str,
    form: Target | None = None,
    model: str | None = None,
    licence: str | None = None,
    ensemble: bool = False,
    place: Path | None = None,
) -> dict[str, Any]:
    """Write a saved model of a study, or the models of all seeds that confirmed its trial (`ensemble`).

    Args:
        point: `TRIAL@EPOCH`, `TRIAL` for its last kept model, or best, cheapest or knee.
        form: Format, by default `format_of(out)`.
        model: Name of the model in a training function's call of `trial.epochs`.
        place: Final path for the lines that load the model, by default `out`.

    Raises:
        StoreError: The point is malformed, or its model is not saved.
        ExportError: The model cannot have this format, or `out` cannot be written.
        TrainingError: The checkpoint cannot be read, or its model cannot be traced.
    """
    form = form or format_of(out)
    seeds = kept_ensemble(record, point, form) if ensemble else None
    if seeds is not None:
        trial, checkpoints = seeds[0].trial, [str(run.checkpoint) for run in seeds]
    else:
        trial, epoch = named_point(record, point)
        checkpoints = [kept_checkpoint(record, trial, epoch)]
    check_target(out, form)
    where = str(out.absolute() if place is None else place)
    if form == "weights":
        from trainers.checkpoints.model_export import export_model  # loads torch, after wrong arguments are refused

        extra = {"study": record.name, "trial": trial, "study_spec": redact_deep(dict(record.spec))}
        written = export_model(checkpoints[0], out, extra, of_task=str(record.spec["task"]), place=place)
        written |= {"values": values_at(record, trial, written["epoch"])}
    else:
        written = _write_programs(
            record, trial, checkpoints, out, where, seeds=seeds, form=form, base_folder=base_folder, model=model,
            licence=licence,
        )  # fmt: skip
    return {
        "study": record.name,
        "trial": trial,
        "epoch": written["epoch"],
        "values": written["values"],
        "out": where,
        "format": form,
        "how_to_load": written["how_to_load"],
    }


def opened_source(
    record: StudyRecord, checkpoint: str, base_folder: str, model: str | None, *, what: str, like: Source | None = None
) -> Source:
    """Load the model of a checkpoint. Raises ExportError, which quotes the request `what`."""
    from automl.exporting.source import source_of

    with as_a_line(what):
        return source_of(checkpoint, str(record.spec["task"]), (base_folder,), model, like=like)


def opened_sources(
    record: StudyRecord, checkpoints: Sequence[str], base_folder: str, model: str | None, *, what: str
) -> list[Source]:
    """Load several models of a study, which share the first model's data."""
    first = opened_source(record, checkpoints[0], base_folder, model, what=what)
    rest = [opened_source(record, one, base_folder, model, what=what, like=first) for one in checkpoints[1:]]
    return [first, *rest]


def check_rows(source: Source, *, what: str) -> None:
    """Raise ExportError, which quotes the request `what`, if the form of rows is unknown."""
    if source.rows is None:
        raise ExportError(
            f"{what}: the model takes or returns several tensors, so this format cannot describe its rows. Use "
            "`automl export` with --format package, torch-export or onnx"
        )


def traced_program(source: Source, *, what: str) -> ExportedProgram:
    """Return the traced model. Raises ExportError, which quotes the request `what`."""
    from trainers.model.traced_program import traced

    with as_a_line(what):
        return traced(source.call, longest=source.longest)


def _write_programs(
    record: StudyRecord, trial: int, checkpoints: Sequence[str], out: Path, where: str, *,
    seeds: Sequence[ConfirmationRecord] | None, form: Target, base_folder: str, model: str | None, licence: str | None,
) -> dict[str, Any]:  # fmt: skip
    what = f"--format {form}"
    sources = opened_sources(record, checkpoints, base_folder, model, what=what)
    if form in {"mlflow", "docker"}:
        check_rows(sources[0], what=what)
    programs = [traced_program(source, what=what) for source in sources]
    from automl.exporting.manifest import manifest_of
    from automl.exporting.writers import WRITERS

    origin = origin_of(record, trial, sources[0]) if seeds is None else ensemble_origin(record, seeds)
    manifest = manifest_of(sources, origin) | {"licence": licence}
    WRITERS[form](programs, manifest, out)
    how_to_load = _how_to_load(where, form, manifest["programs"], rows=sources[0].rows)
    return {"epoch": manifest["epoch"], "values": manifest["values"], "how_to_load": how_to_load}


def _how_to_load(where: str, form: Target, programs: Sequence[str], *, rows: Mapping[str, Any] | None) -> str:
    if form == "mlflow":
        is_array = rows is not None and rows["kind"] == "array"
        given = f"numpy.asarray(rows, dtype={rows['dtype']!r})" if rows is not None and is_array else "rows"
        imports = "import mlflow\nimport numpy\n" if is_array else "import mlflow\n"
        return f"{imports}\nmodel = mlflow.pyfunc.load_model({where!r})\nprint(model.predict({given}))\n"
    if form == "docker":
        return f"docker build --tag model {where} && docker run --env AUTOML_SERVE_TOKEN --publish 7860:7860 model\n"
    if form == "package" and rows is not None:
        return (
            f"import sys\n\nsys.path.insert(0, {where!r})\nfrom predictor.model import load\n\n"
            f"model = load({where!r})\nprint(model.predict(rows))\n"
        )
    if form == "onnx":
        return (
            f"import onnxruntime\n\nmodel = onnxruntime.InferenceSession({where!r})\n"
            "print(model.run(None, {model.get_inputs()[0].name: inputs}))\n"
        )
    program = where if form == "torch-export" else f"{where}/{programs[0]}"
    return f"import torch\n\nmodel = torch.export.load({program!r}).module()\nprint(model(inputs))\n"
