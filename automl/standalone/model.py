"""Loads a trained model from a folder, .pt2 or .onnx file: `load("model").predict([{"age": 39}])`."""

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from .answers import Answers, ArrayAnswers, ClassAnswers, NumberAnswers, TokenAnswers
from .array_rows import ArrayRows
from .batches import Encoded, stacked
from .errors import ModelError
from .image_rows import ImageRows
from .programs import OnnxProgram, Program, TorchProgram
from .provenance import content_of
from .table_rows import TableRows
from .text_rows import TextRows

MANIFEST = "manifest.json"
FORMAT = 1
_MOST_MANIFEST_BYTES = 64 * 2**20
_MOST_WEIGHT = _MOST_PROGRAMS = 1000
_MOST_NUMBERS = 2**26
_NO_ARCHIVE = (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, zlib.error)
"""Exceptions for a file that is no archive, or is damaged."""
BATCH, BATCH_OF_TABLES = 256, 4096
"""Rows of a forward pass. Narrow tables need more: threads cost more than they save on small steps."""
Rows: TypeAlias = TableRows | TextRows | ImageRows | ArrayRows  # turns rows into numbers


class Model:
    """A trained model, or an ensemble. Raises ModelError if its rows cannot be encoded here."""

    def __init__(self, manifest: Mapping[str, Any], programs: Sequence[Program]) -> None:
        if manifest["rows"] is None:
            raise ModelError("this model cannot predict rows here, because only its training code can encode rows")
        self.manifest, self._programs = manifest, programs
        self._weights = counts_of(manifest, len(programs))
        self.rows = rows_of(manifest["rows"])
        if math.prod(max(1, length) for length in self.rows.shape) > _MOST_NUMBERS:
            raise ModelError(f"a row has the shape {list(self.rows.shape)}, more than {_MOST_NUMBERS:,} numbers")
        self.answers = answers_of(manifest["answers"], self.rows, self._weights)

    def predict(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Return each row's prediction. Raises InputError if a row does not fit the model."""
        return list(self.stream(rows))

    @property
    def batch(self) -> int:
        """Number of rows in a forward pass."""
        is_narrow = isinstance(self.rows, TableRows) and len(self.rows.columns) <= BATCH
        return BATCH_OF_TABLES if is_narrow else BATCH

    def stream(self, rows: Iterable[Any], batch: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield each row's prediction, with one batch in memory. Raises InputError if a row does not fit the model."""
        batch = batch or self.batch
        encoded = (self.rows.encode(row, number) for number, row in enumerate(rows))
        while some := list(islice(encoded, batch)):
            yield from self.answered(some)

    def answered(self, rows: Sequence[Encoded]) -> list[dict[str, Any]]:
        """Return each row's prediction. Rows of compatible shapes share a forward pass."""
        answers: list[dict[str, Any]] = [{}] * len(rows)
        for numbers in self._groups(rows):
            batch = stacked([rows[number] for number in numbers], self.rows.fill or 0)
            outputs = [program.run(batch, last=self.answers.takes_last) for program in self._programs]
            counted = [one for one, weight in zip(outputs, self._weights, strict=True) for _ in range(weight)]
            for place, number in enumerate(numbers):
                answers[number] = self.answers.answer([one[place] for one in counted])
        return answers

    def _groups(self, rows: Sequence[Encoded]) -> list[list[int]]:
        if self.rows.fill is not None:
            return [list(range(len(rows)))]
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(rows):
            groups.setdefault(row.shape, []).append(number)
        return list(groups.values())


def load(path: str | Path, device: str = "cpu", *, trust: bool = False) -> Model:
    """Load the model of a folder, .pt2 or .onnx file. Raises ModelError if there is no model.

    A .pt2 file can run code while it is loaded: without `trust`, files that this user has not exported are refused.
    """
    place = Path(path)
    if place.suffix == ".onnx":
        if device != "cpu":
            raise ModelError(
                f"{path}: found the device {device}, allowed: cpu for an .onnx file. For another device, export the "
                "model as a .pt2 file or a folder"
            )
        program = OnnxProgram(place)
        return Model(_manifest(place, lambda: program.notes[MANIFEST]), [program])
    manifest = read_manifest(place)
    files = [place / name for name in program_names(manifest)] if place.is_dir() else [place]
    return Model(manifest, [TorchProgram(file, device, trust=trust) for file in files])


def load_problem(path: str | Path, error: Exception) -> str:
    """Return why `load` has failed, in one line."""
    if isinstance(error, ModelError):
        return f"MODEL: {error}" if str(path) in str(error) else f"MODEL: {path}: {error}"
    if isinstance(error, ImportError):
        return f"MODEL: {path} needs the package {error.name}, which is not installed"
    return f"MODEL: {path} does not load: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a folder or .pt2 file. Raises ModelError for other files."""
    return _manifest(path, lambda: _manifest_text(path))


def _manifest(path: Path, text: Callable[[], str | bytes]) -> dict[str, Any]:
    allowed = "a folder, .pt2 or .onnx file that `automl export` wrote"
    try:
        manifest = json.loads(text())
    except (KeyError, RecursionError, *_NO_ARCHIVE) as error:
        reason = " ".join(str(error).split())[:100]
        raise ModelError(f"{path} is not an exported model ({reason}). Name {allowed}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise ModelError(f"{path}: found the format {found!r}, allowed: {FORMAT}")
    return manifest


def program_names(manifest: Mapping[str, Any]) -> list[str]:
    """Return a folder's program files. Raises ModelError for names outside the folder."""
    found = manifest.get("programs")
    some = found[:_MOST_PROGRAMS] if isinstance(found, list) else []
    names = [one for one in some if isinstance(one, str) and Path(one).name == one]
    if not names or names != found:
        raise ModelError(
            f"programs in the manifest: found {found!r:.200}, allowed: names of files in the model's folder"
        )
    return names


def counts_of(manifest: Mapping[str, Any], count: int) -> list[int]:
    """Return each model's weight in an ensemble's mean, by default 1."""
    weights = manifest.get("weights")
    if weights is None or not isinstance(weights, list) or len(weights) != count:
        return [1] * count
    return [weight if isinstance(weight, int) and 1 <= weight <= _MOST_WEIGHT else 1 for weight in weights]


def rows_of(form: Mapping[str, Any]) -> Rows:
    """Return the encoder for a manifest's `rows`."""
    kinds: dict[str, type[Any]] = {one.kind: one for one in (TableRows, TextRows, ImageRows, ArrayRows)}
    rows: Rows = kinds[form["kind"]](form)
    return rows


def answers_of(form: Mapping[str, Any], rows: Rows, weights: Sequence[int]) -> Answers:
    """Return the decoder for a manifest's `answers`."""
    if form["kind"] == TokenAnswers.kind and isinstance(rows, TextRows):
        return TokenAnswers(form, rows)
    if form["kind"] == NumberAnswers.kind:
        return NumberAnswers(form, weights)
    kinds: dict[str, type[Any]] = {one.kind: one for one in (ClassAnswers, ArrayAnswers)}
    answers: Answers = kinds[form["kind"]](form)
    return answers


def _manifest_text(path: Path) -> str | bytes:
    if path.is_dir():
        return content_of(path / MANIFEST, _MOST_MANIFEST_BYTES)
    with zipfile.ZipFile(path) as archive:
        inside = [name for name in archive.namelist() if name.endswith(f"/extra/{MANIFEST}")]
        if not inside:
            raise ValueError(f"there is no {MANIFEST} in it")
        entry = archive.getinfo(inside[0])
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _MOST_MANIFEST_BYTES:
            raise ValueError(f"{MANIFEST} is compressed or very large")
        return archive.read(entry)
