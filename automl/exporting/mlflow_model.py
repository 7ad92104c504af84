"""A package as a model of MLflow: `mlflow.pyfunc` loads it, from code and without pickles."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

_LOADER = '''\
"""Loads the model that lies beside this file, for MLflow."""

import importlib
import importlib.util
import sys
from pathlib import Path

import mlflow
from mlflow.pyfunc import PythonModel


class Predictor(PythonModel):
    """Rows in, answers out."""

    _skip_type_hint_validation = True  # the model checks its rows by itself, and MLflow need not warn that it does not

    def load_context(self, context):
        folder = Path(context.artifacts["model"])
        self.model = _code_in(folder / "predictor").load(folder)

    def predict(self, context, model_input, params=None):
        """Answer rows: a list, or a data frame, of which one column alone is taken for the rows themselves."""
        rows = model_input
        if hasattr(rows, "to_dict"):
            rows = rows.astype(object).where(rows.notna(), None)
            one = len(rows.columns) == 1 and self.model.rows.kind != "table"
            rows = rows.iloc[:, 0].tolist() if one else rows.to_dict(orient="records")
        elif hasattr(rows, "tolist"):
            rows = rows.tolist()
        return self.model.predict(rows)


def _code_in(folder):
    """Import a package under a name of its own, since another model of this process may have another version."""
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
    """Write a package as a model of MLflow.

    Args:
        package: A folder that `write_package` has written.
        folder: The folder to write, which must not exist.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with warnings.catch_warnings():  # some of MLflow's own modules warn while they are imported
        warnings.simplefilter("ignore")
        _save(package, folder)


def _save(package: Path, folder: Path) -> None:
    import mlflow.pyfunc

    needed = (package / "requirements.txt").read_text(encoding="utf-8").split()
    with TemporaryDirectory() as scratch:
        loader = Path(scratch) / "predictor_of_mlflow.py"
        loader.write_text(_LOADER, encoding="utf-8")
        mlflow.pyfunc.save_model(
            str(folder),
            python_model=str(loader),
            artifacts={"model": str(package)},
            pip_requirements=[f"mlflow=={mlflow.__version__}", *needed],
        )
