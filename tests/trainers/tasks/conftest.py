"""Files that tests of several tasks train on."""

import gzip
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Idx files under MNIST's names."""
    from tests.trainers.tasks.test_vision import bars, idx

    for part, count, seed in (("train", 200, 0), ("t10k", 60, 1)):
        pixels, labels = bars(count, seed)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path
