"""Formats values, states and causes as one line."""

from collections.abc import Mapping, Sequence

from reports.phrases import value_in_words
from studies.records.records import ViewRecord

VIEW_NAMES = {"optuna": "Optuna", "mlflow": "MLflow"}
LONGEST_CAUSE = 160


def number_text(value: float | None) -> str:
    """Format a number with five significant digits; None becomes ""."""
    return "" if value is None else f"{value:.5g}"


def values_text(values: Mapping[str, float]) -> str:
    """Format metrics, such as `val_error 3.1 %, cost_usd $0.0004`."""
    return ", ".join(f"{name} {value_in_words(name, value)}" for name, value in values.items())


def params_text(params: Mapping[str, object]) -> str:
    """Format parameters without the world size, which tables show as ranks."""
    shown = {name: number_text(value) if isinstance(value, float) else value for name, value in params.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items() if name != "world_size")


def late_views_text(late: Sequence[ViewRecord]) -> str:
    """Return `the study's copy in MLflow (the cause) is not up to date yet` for the late copies."""
    causes = [f" ({_without_middle(one.error, LONGEST_CAUSE)})" if one.error else "" for one in late]
    names = [VIEW_NAMES.get(one.view, one.view) + cause for one, cause in zip(late, causes, strict=True)]
    subject, verb = ("the study's copy", "is") if len(names) == 1 else ("the study's copies", "are")
    return f"{subject} in {' and '.join(names)} {verb} not up to date yet"


def cut(text: str, columns: int) -> str:
    """Return the text as one line of at most `columns` characters. An ellipsis marks a cut."""
    line = " ".join(text.split())
    return line if len(line) <= columns else line[: max(columns - 1, 0)] + "…"


def _without_middle(text: str, most: int) -> str:
    """Cut the middle of an error: its class is at the beginning, the first cause at the end."""
    return text if len(text) <= most else f"{text[: most // 3]} … {text[-(most - most // 3 - 3) :]}"
