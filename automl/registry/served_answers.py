"""What versions of a model have answered over HTTP, and how right they were where that is known by now."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from automl.exporting.errors import ExportError
from automl.predicting.row_files import rows_of
from automl.standalone.serving.answer_log import answer_files
from search_spaces.wording import listed, shown

_ID = "id"


@dataclass(kw_only=True, slots=True)
class Answered:
    """What one version has answered.

    Attributes:
        version: Name of the version.
        role: Role in which it has answered last: "champion" or "challenger".
        seconds: Time that each row's request took.
        confidences: Confidence of each answer that has one.
        losses: Loss of each row whose outcome is known: 1 for a wrong label, 0 for the right one; or its squared error.
        counts_errors: Whether losses count wrong labels.
    """

    version: str
    role: str
    seconds: array[float] = field(default_factory=lambda: array("d"))
    confidences: array[float] = field(default_factory=lambda: array("d"))
    losses: array[float] = field(default_factory=lambda: array("d"))
    counts_errors: bool = True

    def plain(self) -> dict[str, Any]:
        """Return figures for people and programs: milliseconds, mean confidence, and error or RMSE of known rows."""
        known = len(self.losses)
        mean_loss = float(np.mean(self.losses)) if known else None
        name = "error" if self.counts_errors else "rmse"
        error = mean_loss if mean_loss is None or self.counts_errors else math.sqrt(mean_loss)
        return {
            "version": self.version,
            "role": self.role,
            "rows": len(self.seconds),
            "p50_ms": 1000 * float(np.quantile(self.seconds, 0.5)),
            "p99_ms": 1000 * float(np.quantile(self.seconds, 0.99)),
            "mean_confidence": float(np.mean(self.confidences)) if self.confidences else None,
            "known_outcomes": known,
            name: error,
        }


def answered(folder: Path, outcomes: Mapping[str, str]) -> dict[str, Answered]:
    """Return what each version has answered, by its name.

    Args:
        folder: Folder that `automl serve-model --answers` has written.
        outcomes: The true label or value of rows, by the row's id, as `outcomes_in` returns them.

    Raises:
        ExportError: There are no answers in it, or they cannot be read.
    """
    files = answer_files(folder)
    if not files:
        raise ExportError(
            f"--answers: found no answers in {str(folder)!r}, allowed: what `automl serve-model --answers` has written"
        )
    found: dict[str, Answered] = {}
    for line in _lines(files):
        one = found.setdefault(line["model"], Answered(version=line["model"], role=line["role"]))
        one.role = line["role"]
        one.seconds.append(line["seconds"])
        if "confidence" in line:
            one.confidences.append(line["confidence"])
        if (outcome := outcomes.get(line[_ID])) is not None:
            _score(one, line, outcome)
    return found


def outcomes_in(path: Path) -> dict[str, str]:
    """Return what turned out to be true, by the row's id.

    Args:
        path: CSV, TSV, JSON lines or Parquet with a column `id` and one more.

    Raises:
        ExportError: It cannot be read, or has other columns.
    """
    found: dict[str, str] = {}
    for where, row in rows_of(path, {"kind": "table"}):
        names = list(row) if isinstance(row, Mapping) else []
        if len(names) != 2 or _ID not in names:
            raise ExportError(
                f"{where}: found {f'the columns {listed(map(shown, names))}' if names else 'no columns'}, "
                f"allowed: {_ID!r} and one more, with what turned out to be true"
            )
        (other,) = (name for name in names if name != _ID)
        outcome = _outcome(row[other])
        if outcome:
            found[str(row[_ID])] = outcome
    return found


def _outcome(cell: Any) -> str:
    """Return what turned out to be true as a text; empty where nothing is known yet.

    Tables with gaps have whole numbers as 1.0, and a gap itself as NaN; Python and pandas write True for true.
    """
    if cell is None:
        return ""
    text = str(cell).strip()
    if text.lower() in {"true", "false"}:
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return ""
    return str(int(number)) if "." in text and number.is_integer() else text


def _lines(files: list[Path]) -> Iterator[dict[str, Any]]:
    for path in files:
        try:
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith("\n"):  # of a worker that was killed the last line may be a part of one
                        yield _parsed(line, f"{path}: line {number}")
        except FileNotFoundError:  # deleted meanwhile by the server, as the oldest
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"{path}: cannot be read ({error})") from None


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
        if isinstance(content, dict) and {_ID, "model", "role", "seconds"} <= content.keys():
            return content
    except ValueError:
        pass
    raise ExportError(f"{where}: found {shown(line.strip()[:60])}, allowed: an answer that `serve-model` has kept")


def _score(one: Answered, line: Mapping[str, Any], outcome: str) -> None:
    if "value" in line:
        try:
            difference = float(outcome) - line["value"]
        except ValueError:
            raise ExportError(
                f"--outcomes: found {shown(outcome)} for the row {line[_ID]!r}, allowed: a number"
            ) from None
        one.counts_errors = False
        if math.isfinite(loss := difference * difference):  # one answer without end would decide the whole mean
            one.losses.append(loss)
    elif "label" in line:
        one.losses.append(float(_outcome(line["label"]) != outcome))
