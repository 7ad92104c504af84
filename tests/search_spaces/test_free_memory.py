"""A small file that expands without bound is refused in one line, before the memory is gone."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces.machine_resources import within_free_memory
from tests.automl.exporting.test_hostile_files import HUGE, array_file
from tests.automl.exporting.test_provenance import good

__all__ = ["good"]
DATA_BYTES, EXPANDED_BYTES = 2**30, 5 * 2**28


def gzipped(head: str, path: Path) -> Path:
    part = gzip.compress(bytes(2**24).replace(b"\0", b"1"))
    path.write_bytes(gzip.compress(head.encode()) + part * (EXPANDED_BYTES // 2**24))
    return path


def table(folder: Path) -> Path:
    return gzipped("a,target\n", folder / "table.csv.gz")


def texts(folder: Path) -> Path:
    return gzipped("", folder / "rows.jsonl.gz")


def parquet(folder: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet as pa_parquet

    column = pa.DictionaryArray.from_arrays(pa.array([0] * (EXPANDED_BYTES >> 20)), pa.array(["x" * 2**20]))
    pa_parquet.write_table(pa.table({"a": column, "target": range(len(column))}), path := folder / "table.parquet")
    assert path.stat().st_size < 2**20
    return path


def curves(folder: Path) -> Path:
    header = HUGE.replace("1099511627776", str(EXPANDED_BYTES // 8))
    with zipfile.ZipFile(path := folder / "curves.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("params.npy", array_file(header, bytes(2**20)))
    return path


READERS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "launch on gzip": (table, ["launch", "--dry-run", "--task", "tabular", "--target", "target", "--data"]),
    "launch on Parquet": (parquet, ["launch", "--dry-run", "--task", "tabular", "--target", "target", "--data"]),
    "predict on one line": (texts, ["predict", "MODEL"]),
    "simulate": (curves, ["simulate", "--objective", "val_error:min"]),
}


@pytest.mark.large
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_expands_beyond_the_free_memory_is_refused_in_one_line(
    good: Path, tmp_path: Path, reader: str
) -> None:
    make, words = READERS[reader]
    path = make(tmp_path)
    command = [str(good) if word == "MODEL" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "automl", *command, str(path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    problem, cure = done.stderr.strip().splitlines()
    assert f"{path}: needs more memory than the " in problem
    assert cure.strip() == "Give fewer rows, or use a machine with more memory"


def test_the_limit_ends_with_the_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ValueError, match=r"^huge: needs more memory than the "), within_free_memory("huge", ValueError):
        bytearray(min(resource.getrlimit(resource.RLIMIT_DATA)[0], 2**46))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.medium
def test_a_limit_that_was_lowered_before_stays() -> None:
    code = """if True:
        import resource
        from search_spaces.machine_resources import within_free_memory
        for limits in ((2**40, 2**41), (2**39, 2**40)):
            resource.setrlimit(resource.RLIMIT_DATA, limits)
            first, second = within_free_memory("a", ValueError), within_free_memory("b", ValueError)
            first.__enter__(), second.__enter__()  # as two threads do
            first.__exit__(None, None, None), second.__exit__(None, None, None)
            assert resource.getrlimit(resource.RLIMIT_DATA) == limits
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("name", "path"), [("_CUDA", "/dev/null"), ("_STATUS", "/nowhere")])
def test_there_is_no_limit_beside_cuda_and_without_proc(monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    monkeypatch.setattr(f"search_spaces.machine_resources.{name}", Path(path))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with within_free_memory("a.csv", ValueError):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
