"""Writes an exported package as an MLflow model, which `mlflow.pyfunc` loads without pickles."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automl.exporting.card import EXAMPLE_IMAGE, example_rows
from automl.standalone.model import MANIFEST

if TYPE_CHECKING:
    from mlflow.types import Schema

_LOADER = '''\
"""Loads the model beside this file, for MLflow."""

import importlib
import importlib.util
import sys
from pathlib import Path

import mlflow
from mlflow.pyfunc import PythonModel


class Predictor(PythonModel):
    """A model that takes rows and returns predictions."""

    _skip_type_hint_validation = True  # the model checks its rows itself

    def load_context(self, context):
        folder = Path(context.artifacts["model"])
        self.model = _code_in(folder / "predictor").load(folder)

    def predict(self, context, model_input, params=None):
        """Predict rows: a list, or a data frame, whose only column may be the rows themselves."""
        rows = model_input
        if hasattr(rows, "to_dict"):
            rows = rows.astype(object).where(rows.notna(), None)
            one = len(rows.columns) == 1 and self.model.rows.kind != "table"
            rows = rows.iloc[:, 0].tolist() if one else rows.to_dict(orient="records")
        elif hasattr(rows, "tolist"):
            rows = rows.tolist()
        return self.model.predict(rows)


def _code_in(folder):
    """Import a package under its own name, since another model of this process may have another version."""
    name = f"predictor_{abs(hash(str(folder))):x}"
    found = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(sys.modules[name])
    return importlib.import_module(f"{name}.model")


mlflow.models.set_model(Predictor())
'''


def save_model(package: Path, folder: Path) -> None:
    """Write an exported package as an MLflow model into a new folder."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with warnings.catch_warnings():  # some of MLflow's own modules warn during import
        warnings.simplefilter("ignore")
        _save(package, folder)


def _save(package: Path, folder: Path) -> None:
    import mlflow.pyfunc
    from mlflow.models import ModelSignature

    manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    rows, answers = manifest["rows"], manifest["answers"]
    signature = None if rows is None else ModelSignature(inputs=_inputs(rows), outputs=_outputs(answers["kind"]))
    needed = (package / "requirements.txt").read_text(encoding="utf-8").split()
    with TemporaryDirectory() as scratch:
        loader = Path(scratch) / "predictor_of_mlflow.py"
        loader.write_text(_LOADER, encoding="utf-8")
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(loader),
            artifacts={"model": str(package)},
            signature=signature,
            input_example=_example(manifest, package),
            pip_requirements=[f"mlflow=={mlflow.__version__}", *needed],
        )


def _inputs(rows: Mapping[str, Any]) -> Schema:
    """Return MLflow's schema of rows. Table cells are `any`, because numeric types refuse integers, texts and dates."""
    import numpy as np
    from mlflow.types.schema import ColSpec, Schema, TensorSpec

    if rows["kind"] == "table":
        names = [one["name"] for one in (*rows["numbers"], *rows["categories"])]
        return Schema([_any_type(name) for name in names])
    if rows["kind"] == "array":
        return Schema([TensorSpec(np.dtype(rows["dtype"]), (-1, *rows["shape"]))])
    return Schema([ColSpec("binary" if rows["kind"] == "image" else "string")])


def _outputs(kind: str) -> Schema:
    from mlflow.types.schema import ColSpec, Map, Schema

    if kind == "number":
        interval = [ColSpec("double", name, required=False) for name in ("low", "high")]
        return Schema([ColSpec("double", "value"), *interval])
    if kind not in ("classes", "next_token"):
        return Schema([_any_type("outputs")])
    name = "label" if kind == "classes" else "token"
    probabilities = ColSpec(Map("double"), "probabilities")
    return Schema([ColSpec("string", name), ColSpec("double", "confidence"), probabilities])


def _any_type(name: str) -> Any:
    from mlflow.types.schema import AnyType, ColSpec

    return ColSpec(AnyType(), name, required=True)  # type: ignore[no-untyped-call]


def _example(manifest: Mapping[str, Any], package: Path) -> Any:
    import numpy as np

    rows = example_rows(manifest)
    if not rows:
        return None
    if manifest["rows"]["kind"] == "array":
        return np.asarray(rows, dtype=manifest["rows"]["dtype"])
    if manifest["rows"]["kind"] == "image":
        import pandas as pd

        return pd.DataFrame({"image": [(package / EXAMPLE_IMAGE).read_bytes()]})  # MLflow loses bytes of a list
    return rows
