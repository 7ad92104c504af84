"""Small tables of made-up learning curves, in the format that recorded ones have."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from studies.simulation.recorded_curves import CurveTable, read_table


def arrays(*, count: int = 60, epochs: int = 12, seed: int = 0, name: str = "made-up") -> dict[str, Any]:
    """Error falls towards a floor that depends on two parameters; bigger models are slower."""
    rng = np.random.default_rng(seed)
    rate, width = 10 ** rng.uniform(-4, 0, count), rng.integers(8, 257, count)
    floor = 0.05 + 0.1 * np.abs(np.log10(rate) + 1.5) + 0.3 / width
    epoch = np.arange(1, epochs + 1)
    error = floor[:, None] + (0.9 - floor[:, None]) / (1 + 2 * epoch)
    meta = {
        "format": "curves-v1",
        "name": name,
        "params": {
            "rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
            "width": {"type": "int", "low": 8, "high": 256, "log": True},
        },
        "metrics": {
            "val_loss": {"direction": "minimize", "split": "validation"},
            "val_accuracy": {"direction": "maximize", "split": "validation", "unit": "percent"},
            "test_loss": {"direction": "minimize", "split": "test"},
            "test_accuracy": {"direction": "maximize", "split": "test", "unit": "fraction"},
        },
        "static": {"model_size": "weights"},
    }
    return {
        "meta_json": json.dumps(meta), "params": np.stack([rate, width], axis=-1),
        "seconds": (0.5 + width[:, None] / 128) * epoch, "metric_val_loss": 3 * error,
        "metric_val_accuracy": 100 * (1 - error), "metric_test_loss": 3.3 * error + 0.01,
        "metric_test_accuracy": 1 - 1.1 * error, "static_model_size": width.astype(float) * 10,
    }  # fmt: skip


def write(folder: Path, content: dict[str, Any], file: str = "table.npz") -> Path:
    """The file that holds these arrays."""
    path = folder / file
    np.savez(path, **content)
    return path


def table(folder: Path, **shape: Any) -> CurveTable:
    """The table of such arrays, read back."""
    return read_table(write(folder, arrays(**shape)))
