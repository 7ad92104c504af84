"""Functions that write the export formats."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch.export import ExportedProgram

from automl.exporting.formats import write_mlflow, write_onnx, write_package, write_torch_export
from automl.images.image_folder import write_image_folder

Writer: TypeAlias = Callable[[Sequence[ExportedProgram], Mapping[str, Any], Path], None]
WRITERS: dict[str, Writer] = {
    "package": write_package,
    "torch-export": write_torch_export,
    "onnx": write_onnx,
    "mlflow": write_mlflow,
    "docker": write_image_folder,
}
