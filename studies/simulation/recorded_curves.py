"""Tables of recorded learning curves: configurations, and their metrics and times after each epoch.

A table is a file `.npz` with the text `meta_json`, `seconds` [n, T], an array `metric_NAME` [n, T] for each metric, an
array `static_NAME` [n] for each constant, and the configurations. In the format `curves-v1`, these are numbers `params`
[n, d], with ranges in the meta's `params`. In `curves-v2`, they are JSON texts `params_json` [n], and the meta's
`space` is like a spec's space. Tables are read without pickle.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from search_spaces.machine_resources import within_free_memory
from search_spaces.messages import UserError, found, listed, near_file, shown
from search_spaces.parameters import Categorical, Float, Int, Parameter, SpaceError, Value
from search_spaces.space import Space
from studies.records.records import Direction
from trainers.protocol import CUMULATIVE_METRICS, Params

Array = NDArray[np.float64]
Split = Literal["validation", "test"]

FORMATS = ("curves-v1", "curves-v2")
CLIP_IQR = 100.0  # distance from the third quartile, in interquartile ranges, beyond which values are clipped
TABLE = "table"  # name of the parameter that holds a configuration's table when tables are pooled
WORLD_SIZE = "world_size"
_EDGE = 1e-6  # relative tolerance: single precision may round a value at the edge of its range beyond the edge


class CurvesError(UserError):
    """A table cannot be read or used; the message names the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveMetric:
    """A metric's direction, and the part of the data on which it was measured."""

    direction: Direction
    split: Split


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CurveTable:
    """Learning curves of n configurations over T epochs."""

    name: str
    space: Space
    params: tuple[Mapping[str, Value], ...]
    seconds: Array  # cumulative training time at the end of each epoch [n, T]
    metrics: Mapping[str, Array]  # values at the end of each epoch [n, T]; NaN where training diverged
    about: Mapping[str, CurveMetric]
    statics: Mapping[str, Array]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.params)

    @property
    def epochs(self) -> int:
        """Return the number of epochs of a full training."""
        return int(self.seconds.shape[1])

    @property
    def world_sizes(self) -> NDArray[np.int64]:
        """Return the number of ranks of each configuration [n]."""
        return np.array([int(params.get(WORLD_SIZE) or 1) for params in self.params], dtype=np.int64)

    @property
    def mean_epoch_seconds(self) -> Array:
        """Return each configuration's mean epoch duration in seconds [n]."""
        return self.seconds[:, -1] / self.epochs

    def full_trial_usd(self, usd_per_slot_hour: float) -> Array:
        """Return the dollars of each full training without its start [n]."""
        return self.seconds[:, -1] * self.world_sizes * usd_per_slot_hour / 3600.0

    def test_metric(self, metric: str) -> str | None:
        """Return the test metric for a validation metric, or None.

        It has the same name (`test_loss` for `valid_loss`), or is the only test metric with the same direction and last
        word (`test_balanced_error` for `val_error`).
        """
        for prefix in ("val_", "valid_", "validation_"):
            if metric.startswith(prefix) and (name := f"test_{metric.removeprefix(prefix)}") in self.metrics:
                return name
        word, about = metric.rsplit("_", 1)[-1], self.about.get(metric)
        if about is None:
            return None
        wanted = CurveMetric(direction=about.direction, split="test")
        like = [name for name, other in self.about.items() if other == wanted and name.rsplit("_", 1)[-1] == word]
        return like[0] if len(like) == 1 else None


def find_tables(paths: Sequence[str | Path]) -> list[Path]:
    """Return the named `.npz` files, and all in named folders, sorted. Raises CurvesError if a path has none."""
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.rglob("*.npz")) if path.is_dir() else [path]
        if not inside:
            raise CurvesError(
                f"{path}: the folder has no .npz file. Name a folder with tables of the format {listed(FORMATS)}"
            )
        if not inside[0].exists():
            raise CurvesError(f"{path}: no such file{near_file(path) or '. Name a file or folder of learning curves'}")
        files += inside
    return files


def read_table(path: str | Path) -> CurveTable:
    """Read and check a table. Raises CurvesError if the file does not have this format.

    Each metric `accuracy` also yields an `error`, 1 - accuracy. Values worse than Q3 + 100 IQR of their metric are
    clipped, which `notes` reports.
    """
    path = Path(path)
    try:
        with (
            within_free_memory(str(path), CurvesError),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    except CurvesError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file may raise any error
        reason = getattr(error, "strerror", None) or f"cannot be read as .npz ({type(error).__name__})"
        raise CurvesError(f"{path}: {reason}. Name a table of the format {listed(FORMATS)}") from None
    try:
        return _table(arrays)
    except (CurvesError, SpaceError) as error:
        raise CurvesError(f"{path}: {error}") from None


def _table(arrays: Mapping[str, NDArray[Any]]) -> CurveTable:
    meta = _meta(arrays)
    space, params = _read_v1(arrays, meta) if meta["format"] == FORMATS[0] else _read_v2(arrays, meta)
    seconds = _numbers(arrays, "seconds", 2)
    count, epochs = seconds.shape
    if not count or not epochs:
        raise CurvesError(f"seconds: the shape is {seconds.shape}, but at least one row and one epoch are needed")
    if len(params) != count:
        raise CurvesError(f"seconds: it has {count} rows for {len(params)} configurations. Give one row for each")
    if not np.isfinite(seconds).all() or (seconds[:, 0] < 0).any() or (np.diff(seconds, axis=1) < 0).any():
        raise CurvesError("seconds: some values fall, are negative or are not finite. Give cumulative seconds")
    if (seconds[:, -1] <= 0).any():
        raise CurvesError("seconds: a full training takes 0 seconds. Give the time that it took")
    metrics, about, notes = _metrics(arrays, meta, (count, epochs))
    statics = {
        name.removeprefix("static_"): _shaped(arrays, name, (count,)) for name in arrays if name.startswith("static_")
    }
    _check_names(space, metrics, statics)
    return CurveTable(
        name=str(meta["name"]),
        space=space,
        params=params,
        seconds=seconds,
        metrics=metrics,
        about=about,
        statics=statics,
        notes=notes,
    )


def _meta(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    try:
        meta = json.loads(str(arrays["meta_json"]))
    except KeyError:
        raise CurvesError(f"it has no array meta_json, which the formats {listed(FORMATS)} require") from None
    except ValueError:
        raise CurvesError("meta_json: the text is not JSON") from None
    if not isinstance(meta, dict) or meta.get("format") not in FORMATS:
        given = meta.get("format") if isinstance(meta, dict) else meta
        raise CurvesError(f"meta_json: format: {found(given, listed(FORMATS))}")
    rows, space = ("params", "params") if meta["format"] == FORMATS[0] else ("params_json", "space")
    if missing := [name for name in (rows, "seconds") if name not in arrays]:
        raise CurvesError(f"it has no array {missing[0]}, which the format {meta['format']} requires")
    for key, kind in (("name", str), (space, dict), ("metrics", dict)):
        if not isinstance(meta.get(key), kind):
            allowed = "text" if kind is str else "a mapping"
            raise CurvesError(f"meta_json: {key}: {found(meta.get(key), allowed)}")
    return meta


def _read_v2(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> tuple[Space, tuple[Params, ...]]:
    try:
        space = Space.from_dict(meta["space"])
    except SpaceError as error:
        raise CurvesError(f"meta_json: space: {error}") from None
    rows = []
    for index, text in enumerate(arrays["params_json"].ravel().tolist()):
        try:
            params = json.loads(str(text))
            space.check(params)
        except (ValueError, AttributeError, TypeError) as error:
            raise CurvesError(f"params_json: row {index}: {error}") from None
        rows.append(params)
    return space, tuple(rows)


def _read_v1(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> tuple[Space, tuple[Params, ...]]:
    space, rows = _space(meta), _numbers(arrays, "params", 2)
    if rows.shape[1] != len(space):
        raise CurvesError(f"params: the shape is {rows.shape} instead of {(len(rows), len(space))}")
    return space, tuple(_params(space, row, index) for index, row in enumerate(rows))


def _space(meta: Mapping[str, Any]) -> Space:
    entries: dict[str, Parameter] = {}
    for name, form in meta["params"].items():
        kind = form.get("type") if isinstance(form, Mapping) else None
        if kind not in {"float", "int"}:
            raise CurvesError(f"meta_json: params.{name}.type: {found(kind, 'float, int')}")
        try:
            low, high, log = form["low"], form["high"], bool(form.get("log", False))
        except KeyError as error:
            raise CurvesError(f"meta_json: params.{name}: it has no {error.args[0]}. Give it as a number") from None
        try:
            entries[name] = (
                Float(low=low, high=high, log=log) if kind == "float" else Int(low=int(low), high=int(high), log=log)
            )
        except SpaceError as error:
            raise CurvesError(f"meta_json: params.{name}: {error}") from None
    return Space(entries)


def _numbers(arrays: Mapping[str, NDArray[Any]], name: str, dimensions: int) -> Array:
    array = arrays[name]
    if array.dtype.kind not in "fiu" or array.ndim != dimensions:
        problem = f"found {array.dtype} of shape {array.shape}, allowed: numbers in {dimensions} dimensions"
        raise CurvesError(f"{name}: {problem}")
    return np.asarray(array, dtype=float)


def _shaped(arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> Array:
    array = _numbers(arrays, name, len(shape))
    if array.shape != shape:
        raise CurvesError(f"{name}: the shape is {array.shape} instead of {shape}")
    if len(shape) == 1 and not np.isfinite(array).all():
        raise CurvesError(f"{name}: some values are not finite. Give finite numbers")
    return array


def _params(space: Space, row: Array, index: int) -> Params:
    params: dict[str, Value] = {}
    for name, number in zip(space.names(), row, strict=True):
        parameter = space.parameter(name)
        assert isinstance(parameter, Float | Int)  # noqa: S101 - `_space` makes no other types
        slack = _EDGE * max(abs(parameter.low), abs(parameter.high))
        if not parameter.low - slack <= number <= parameter.high + slack:
            problem = f"found {float(number)!r}, allowed: {parameter.allowed()}"
            raise CurvesError(f"params: row {index}, {name}: {problem}")
        inside = min(max(float(number), parameter.low), parameter.high)
        params[name] = round(inside) if isinstance(parameter, Int) else inside
    return params


def _metrics(
    arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], shape: tuple[int, int]
) -> tuple[dict[str, Array], dict[str, CurveMetric], tuple[str, ...]]:
    metrics: dict[str, Array] = {}
    about: dict[str, CurveMetric] = {}
    notes: list[str] = []
    for key in (name for name in arrays if name.startswith("metric_")):
        name = key.removeprefix("metric_")
        values, told = _shaped(arrays, key, shape), meta["metrics"].get(name)
        about[name] = _about(name, told)
        metrics[name], note = _clipped(values, name, about[name].direction)
        notes += note
        if name.endswith("accuracy") and about[name].direction == "maximize":
            whole = 100.0 if told.get("unit") == "percent" else 1.0
            error = f"{name.removesuffix('accuracy')}error"
            metrics[error] = 1.0 - metrics[name] / whole
            about[error] = CurveMetric(direction="minimize", split=about[name].split)
    if not metrics:
        raise CurvesError("it has no array metric_NAME. Add at least one metric")
    return metrics, about, tuple(notes)


def _about(name: str, told: object) -> CurveMetric:
    told = told if isinstance(told, Mapping) else {}
    direction, split = told.get("direction"), told.get("split")
    if direction not in {"minimize", "maximize"}:
        raise CurvesError(f"meta_json: metrics.{name}.direction: {found(direction, 'minimize, maximize')}")
    if split not in {"validation", "test"}:
        raise CurvesError(f"meta_json: metrics.{name}.split: {found(split, 'validation, test')}")
    return CurveMetric(direction=direction, split=split)


def _clipped(values: Array, name: str, direction: Direction) -> tuple[Array, list[str]]:
    """Return clipped values and notes about them; infinite values become NaN, for diverged trainings."""
    values = np.where(np.isfinite(values), values, np.nan)
    sign = 1.0 if direction == "minimize" else -1.0
    finite = sign * values[~np.isnan(values)]
    if not len(finite):
        raise CurvesError(f"metric_{name}: it has no finite value, but at least one is needed")
    first, third = np.quantile(finite, [0.25, 0.75])
    bound = float(third + CLIP_IQR * (third - first))
    count = int((finite > bound).sum())
    if third <= first or not count:
        return values, []
    clipped: Array = sign * np.minimum(sign * values, bound)
    return clipped, [f"{name}: {count} values worse than {sign * bound:.4g} are clipped there"]


def _check_names(space: Space, metrics: Mapping[str, Array], statics: Mapping[str, Array]) -> None:
    if not len(space):
        raise CurvesError("meta_json: params is empty, but at least one parameter is needed")
    for name in (*metrics, *statics):
        if name in CUMULATIVE_METRICS or (name in metrics and name in statics):
            raise CurvesError(f"{name}: this name is used twice, or is reserved. Choose another name")
    for name in space.names():
        if name in {TABLE, WORLD_SIZE}:
            raise CurvesError(f"meta_json: params.{name}: simulations use this name themselves. Choose another name")


def pooled(tables: Sequence[CurveTable]) -> CurveTable:
    """Return several tables as one, with a parameter `table`. Raises CurvesError if they do not fit together."""
    first, *others = tables
    if not others:
        return first
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise CurvesError(f"the tables are named {listed(names)}. Give each table its own name to pool them")
    for other in others:
        for what, in_words in (("epochs", "their numbers of epochs"), ("about", "their metrics")):
            if getattr(other, what) != getattr(first, what):
                raise CurvesError(f"{other.name} and {first.name} differ in {in_words}, so they cannot be pooled")
        if other.space.names() != first.space.names() or set(other.statics) != set(first.statics):
            raise CurvesError(f"{other.name} and {first.name} differ in their columns, so they cannot be pooled")
    entries: dict[str, Parameter] = {TABLE: Categorical(names)}
    for name in first.space.names():
        entries[name] = _wider([table.space.parameter(name) for table in tables])
    return CurveTable(
        name=f"pooled-{len(names)}",
        space=Space(entries),
        params=tuple({TABLE: table.name, **params} for table in tables for params in table.params),
        seconds=np.concatenate([table.seconds for table in tables]),
        metrics={name: np.concatenate([table.metrics[name] for table in tables]) for name in first.metrics},
        about=first.about,
        statics={name: np.concatenate([table.statics[name] for table in tables]) for name in first.statics},
        notes=tuple(f"{table.name}: {note}" for table in tables for note in table.notes),
    )


def _wider(parameters: Sequence[Parameter]) -> Parameter:
    first = parameters[0]
    if isinstance(first, Categorical) or any(type(one) is not type(first) for one in parameters):
        raise CurvesError(f"the tables have parameters of different types, so they cannot be pooled ({shown(first)})")
    if isinstance(first, Int):
        whole = [one for one in parameters if isinstance(one, Int)]
        return replace(first, low=min(one.low for one in whole), high=max(one.high for one in whole))
    ranges = [one for one in parameters if isinstance(one, Float)]
    return replace(first, low=min(one.low for one in ranges), high=max(one.high for one in ranges))


def with_price_factors(table: CurveTable, factors: Sequence[float], seed: int = 0) -> CurveTable:
    """Return the table with a random price factor (above 0) for each configuration's device.

    A device with f times the price is simulated as f times slower, since all slots have one price.
    """
    drawn = np.random.default_rng(seed).choice(np.asarray(factors, dtype=float), size=len(table))
    return replace(table, seconds=table.seconds * drawn[:, None])


def with_world_sizes(table: CurveTable, sizes: Sequence[int], efficiency: float) -> CurveTable:
    """Return the table with each configuration repeated for each world size.

    k ranks are k * efficiency^log2(k) times as fast as one rank, with the same curves; 0 < efficiency <= 1.
    """
    entries: dict[str, Parameter] = {name: table.space.parameter(name) for name in table.space.names()}
    return replace(
        table,
        space=Space({**entries, WORLD_SIZE: Categorical(tuple(sizes))}),
        params=tuple({**params, WORLD_SIZE: size} for size in sizes for params in table.params),
        seconds=np.concatenate([table.seconds / (size * efficiency ** np.log2(size)) for size in sizes]),
        metrics={name: np.concatenate([values] * len(sizes)) for name, values in table.metrics.items()},
        statics={name: np.concatenate([values] * len(sizes)) for name, values in table.statics.items()},
    )
